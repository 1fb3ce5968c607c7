//! What AUTH, NEGOTIATE and PROTOCOL_INFO are answered with.

use super::{TextReply, list, ok};
use crate::fields::FieldError;

/// Credentials were accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// Whose.
    pub principal: String,
}

impl TextReply for Authenticated {
    const OF: &'static str = "AUTH";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { principal: ok(text)?.require("principal")?.into_owned() })
    }
    fn to_text(&self) -> String {
        format!("OK principal={} authenticated=true", self.principal)
    }
}

/// What was agreed for a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The version.
    pub version: u32,
    /// What is switched on.
    pub enabled: Vec<String>,
    /// What was asked for and isn't there.
    pub unsupported: Vec<String>,
}

impl TextReply for Negotiated {
    const OF: &'static str = "NEGOTIATE";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self {
            version: fields.number("protocol_version")?,
            enabled: list(&fields.get("enabled").unwrap_or_default()),
            unsupported: list(&fields.get("unsupported").unwrap_or_default()),
        })
    }
    fn to_text(&self) -> String {
        let (enabled, unsupported) = (self.enabled.join(","), self.unsupported.join(","));
        format!("OK protocol_version={} enabled={enabled} unsupported={unsupported}", self.version)
    }
}

/// A broker's versions and features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtocolInfo {
    /// The oldest version it speaks.
    pub min_version: u32,
    /// The newest.
    pub max_version: u32,
    /// The one without NEGOTIATE.
    pub default_version: u32,
    /// Features that NEGOTIATE can switch on.
    pub features: Vec<String>,
    /// The classes its errors can have.
    pub error_classes: Vec<String>,
}

impl TextReply for ProtocolInfo {
    const OF: &'static str = "PROTOCOL_INFO";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self {
            min_version: fields.number("min_version")?,
            max_version: fields.number("max_version")?,
            default_version: fields.number("default_version")?,
            features: list(&fields.get("features").unwrap_or_default()),
            error_classes: list(&fields.get("error_classes").unwrap_or_default()),
        })
    }
    fn to_text(&self) -> String {
        format!(
            "OK protocol=cursus min_version={} max_version={} default_version={} features={} error_classes={}",
            self.min_version,
            self.max_version,
            self.default_version,
            self.features.join(","),
            self.error_classes.join(",")
        )
    }
}
