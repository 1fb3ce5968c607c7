use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

/// A boxed future, as the trait's methods return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A connected byte stream.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// Where connections come from. [`Tcp`](crate::Tcp) is the real one; a simulation brings its own.
pub trait Network: Send + Sync + 'static {
    /// The addresses that a host name stands for, in the order in which they should be tried.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;

    /// Opens a connection. The caller bounds the time.
    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Socket>>>;

    /// Listens on an address; port 0 asks for a free port.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;
}

/// A listening socket. Dropping it stops listening.
pub trait Listener: Send + Sync {
    /// The address that was bound, with the port that was chosen.
    fn local_address(&self) -> io::Result<SocketAddr>;

    /// The next connection and the address of its other end.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn Socket>, SocketAddr)>>;
}
