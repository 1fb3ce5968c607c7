//! A broker that stands alone, started and ended by the test it belongs to.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crate::client::answers;
use crate::consumers::soon;
use crate::place::unique;

/// What the broker is told. Acknowledged is flushed: a broker that is killed has everything that was published.
const CONFIGURATION: &str = "enable_exporter: false\ndisk_flush_interval_ms: 50\nlinger_ms: 5\n";

/// A running broker. Dropping it kills it and removes its directory.
pub(crate) struct Broker {
    binary: String,
    variables: Vec<(&'static str, String)>,
    directory: PathBuf,
    port: u16,
    child: Child,
}

impl Broker {
    /// Starts a broker on free ports, with a directory and a configuration file of its own, and waits until it answers.
    pub(crate) async fn start(binary: &str, lines: &[&str], variables: &[(&'static str, &str)]) -> Self {
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        // Somebody else may take a port between our look and the broker's: then another pair is tried.
        for _ in 0..10 {
            let directory = std::env::temp_dir().join(unique("cursus-real-broker"));
            fs::create_dir(&directory).expect("a directory");
            let [port, health] = [free_port(), free_port()];
            let mut text = format!("broker_port: {port}\nhealth_check_port: {health}\nlog_dir: data\n{CONFIGURATION}");
            lines.iter().for_each(|line| text.extend([*line, "\n"]));
            fs::write(directory.join("broker.yaml"), text).expect("a configuration file");
            let child = spawn(binary, &directory, &variables);
            let (binary, variables) = (binary.to_owned(), variables.clone());
            let mut broker = Self { binary, variables, directory, port, child };
            if broker.wait_answer().await {
                return broker;
            }
        }
        panic!("the broker {binary} ended ten times right after its start: its last words are above");
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends it at once, as a loss of power would end its process.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it as a system that shuts down would, and waits until it has ended.
    pub(crate) async fn terminate(&mut self) {
        self.signal("-TERM");
        soon("the broker to end by itself", async {
            while self.child.try_wait().expect("a child process").is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// Starts it again, on the same port with the same directory, and waits until it answers.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.binary, &self.directory, &self.variables);
        assert!(self.wait_answer().await, "the broker ended right after it was started again");
    }

    /// Stops it in the middle of whatever it does; its connections stay open.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("the kill command").success(), "kill {signal} failed");
    }

    /// Waits until it answers; false where it has ended instead.
    async fn wait_answer(&mut self) -> bool {
        soon("the broker to answer", async {
            loop {
                if let Some(status) = self.child.try_wait().expect("a child process") {
                    self.last_words(&status.to_string());
                    return false;
                }
                if answers(&self.address()).await {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    }

    #[allow(clippy::print_stderr)]
    fn last_words(&self, status: &str) {
        let log = fs::read(self.directory.join("broker.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(40)..].join("\n");
        eprintln!("the broker on port {} ({status}) said last:\n{tail}", self.port);
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.last_words("its test failed");
        }
        self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn spawn(binary: &str, directory: &Path, variables: &[(&'static str, String)]) -> Child {
    let log = File::options().create(true).append(true).open(directory.join("broker.log")).expect("a log file");
    let binary = fs::canonicalize(binary).unwrap_or_else(|error| panic!("CURSUS_BROKER_BIN={binary}: {error}"));
    let mut command = Command::new(&binary);
    command.args(["--config", "broker.yaml"]).current_dir(directory).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("a log file")).stderr(log);
    // The broker would prefer these to its configuration.
    for variable in ["BROKER_PORT", "HEALTH_CHECK_PORT", "LOG_DIR", "CONFIG_PATH"] {
        command.env_remove(variable);
    }
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", binary.display()))
}

/// A port that is free on every address: a broker has no bind address, and listens on all of them.
///
/// Below the ports that the system gives to outgoing connections: there, while the broker is down, whoever tries to connect
/// to it can end up connected to himself.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    let own = (std::process::id() as u16).wrapping_mul(61);
    loop {
        let port = FIRST + own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
