//! The cluster, in a process of its own, with its control port.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use cursus_embedded::{Cluster, Options, control_port};

use crate::{BROKERS, PARTITIONS, Result, TOPIC, end_with_parent};

/// Prints one line with the addresses, and serves until the standard input closes.
pub(crate) fn run() -> Result<()> {
    let parent_ended = end_with_parent()?;
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let cluster = Cluster::start(Options {
            brokers: BROKERS,
            // As real brokers do.
            leader_election: Duration::from_secs(5),
            coordinator_commit_lag: Duration::from_millis(100),
            ..Options::default()
        })
        .await?;
        cluster.create_topic(TOPIC, PARTITIONS)?;
        let listener = cluster.options().network.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let control = listener.local_address()?.to_string();
        println!("{}", serde_json::json!({ "brokers": cluster.brokers(), "control": control }));
        tokio::select! {
            () = parent_ended => {}
            () = control_port::serve(cluster.clone(), listener) => {}
        }
        cluster.stop().await;
        Ok(())
    })
}
