use std::fmt;
use std::str::FromStr;

/// A broker's address: host and port. IPv6 literals stand in brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    pub(crate) fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    fn is_loopback_name(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// A broker that was configured without an advertised host calls itself `localhost`. Where the broker that said so was
    /// reached by another name, that name is the one to use.
    pub(crate) fn seen_from(self, speaker: &Self) -> Self {
        if self.is_loopback_name() && !speaker.is_loopback_name() {
            return Self::new(speaker.host.clone(), self.port);
        }
        self
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains("://") {
            return Err("leave out what stands before ://, and what follows the port");
        }
        let (host, port) = text.rsplit_once(':').ok_or("the port is missing")?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or("the bracket is never closed")?,
            None if host.contains(':') => return Err("an IPv6 address stands in brackets"),
            None => host,
        };
        if host.is_empty() {
            return Err("the host is missing");
        }
        if host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
            return Err("the host has a character that no host name has");
        }
        if !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err("the port is not a number");
        }
        match port.parse() {
            Ok(0) | Err(_) => Err("the port is not from 1 to 65535"),
            Ok(port) => Ok(Self::new(host, port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_addresses_and_brackets_are_read_and_written_back() {
        for text in ["localhost:9000", "10.0.0.1:1", "[::1]:9000", "broker-1.example:65535"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "host",
            ":1",
            "host:",
            "host:0",
            "host:65536",
            "host:+1",
            "::1:9000",
            "[::1:9000",
            "a b:1",
            "http://x:1",
            "h:-1",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn localhost_from_afar_is_the_speaker() {
        let at = |text: &str| text.parse::<Address>().unwrap();
        assert_eq!(at("localhost:9001").seen_from(&at("broker:9000")), at("broker:9001"));
        assert_eq!(at("127.0.0.1:9001").seen_from(&at("10.0.0.1:9000")), at("10.0.0.1:9001"));
        assert_eq!(at("localhost:9001").seen_from(&at("127.0.0.1:9000")), at("localhost:9001"));
        assert_eq!(at("other:9001").seen_from(&at("broker:9000")), at("other:9001"));
    }
}
