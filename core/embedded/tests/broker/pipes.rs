//! A network of pipes within the process. With it and a paused clock nothing depends on how fast the machine is, and
//! ports can be what a recording has.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use cursus_net::{BoxFuture, Listener, Network, Socket};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How many bytes are on their way before a writer waits.
const ROOM: usize = 64 << 10;

type Listeners = Arc<Mutex<BTreeMap<SocketAddr, UnboundedSender<DuplexStream>>>>;

#[derive(Default)]
pub(crate) struct Pipes {
    listeners: Listeners,
}

struct Pipe {
    address: SocketAddr,
    listeners: Listeners,
    accepted: tokio::sync::Mutex<UnboundedReceiver<DuplexStream>>,
}

impl Network for Pipes {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        // A broker that stands alone calls itself localhost.
        let host = if host == "localhost" { "127.0.0.1" } else { host };
        Box::pin(async move { Ok(vec![SocketAddr::new(host.parse().map_err(io::Error::other)?, port)]) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Socket>>> {
        Box::pin(async move {
            let (here, there) = duplex(ROOM);
            let listeners = self.listeners.lock().unwrap();
            let listener = listeners.get(&address).ok_or(io::ErrorKind::ConnectionRefused)?;
            listener.send(there).map_err(|_| io::ErrorKind::ConnectionRefused)?;
            Ok(Box::new(here) as Box<dyn Socket>)
        })
    }

    fn listen(&self, mut address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let mut listeners = self.listeners.lock().unwrap();
            if address.port() == 0 {
                address.set_port(20_000 + listeners.len() as u16);
            }
            if listeners.contains_key(&address) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let (sender, accepted) = unbounded_channel();
            listeners.insert(address, sender);
            let listeners = self.listeners.clone();
            Ok(Box::new(Pipe { address, listeners, accepted: accepted.into() }) as Box<dyn Listener>)
        })
    }
}

impl Listener for Pipe {
    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn Socket>, SocketAddr)>> {
        Box::pin(async move {
            let socket = self.accepted.lock().await.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
            Ok((Box::new(socket) as Box<dyn Socket>, self.address))
        })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.listeners.lock().unwrap().remove(&self.address);
    }
}
