use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

use crate::network::{BoxFuture, Listener, Network, Socket};

/// The operating system's TCP, with Nagle's delay off: every frame is written whole and should leave at once.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tcp;

// This file is the one place where the core may touch tokio's sockets.
#[allow(clippy::disallowed_methods)]
impl Network for Tcp {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move {
            // An address needs no resolver, and so no thread of the blocking pool.
            if let Ok(address) = host.parse() {
                return Ok(vec![SocketAddr::new(address, port)]);
            }
            Ok(tokio::net::lookup_host((host, port)).await?.collect())
        })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Socket>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Socket>)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move { Ok(Box::new(TcpListener::bind(address).await?) as Box<dyn Listener>) })
    }
}

impl Listener for TcpListener {
    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn Socket>, SocketAddr)>> {
        Box::pin(async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            stream.set_nodelay(true)?;
            Ok((Box::new(stream) as Box<dyn Socket>, peer))
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_go_both_ways_and_a_literal_address_resolves_to_itself() {
        let listener = Tcp.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap();
        assert_eq!(Tcp.resolve("127.0.0.1", address.port()).await.unwrap(), [address]);
        let client = async {
            let mut socket = Tcp.connect(address).await.unwrap();
            socket.write_all(b"ping").await.unwrap();
            let mut answer = [0; 4];
            socket.read_exact(&mut answer).await.unwrap();
            answer
        };
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut asked = [0; 4];
            socket.read_exact(&mut asked).await.unwrap();
            socket.write_all(b"pong").await.unwrap();
            asked
        };
        assert_eq!(futures_util::future::join(client, server).await, (*b"pong", *b"ping"));
    }
}
