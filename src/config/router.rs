//! The configuration of a router.

use core::time::Duration;
use std::net::SocketAddr;

use clap::Args;
use log::LevelFilter;
use serde::{Deserialize, Serialize};

use crate::net::TlsFiles;

use super::{
    ConfigError, RawTls, Text, any_address, keepalive, listen_address, log_level, log_level_text, not_own,
    parse_congestion, poll, raw::one_or_many, routers, units,
};

/// The least memory for queues: less holds no window of a flow.
const MIN_BUFFER: u64 = 8 << 20;

/// What a user can set of a router, as written; what is absent has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawRouterConfig {
    /// Address on which adaptors and other routers connect
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<Text>,

    /// Another router to connect to; can be given several times
    #[arg(long, value_name = "IP:PORT")]
    #[serde(deserialize_with = "one_or_many::deserialize", skip_serializing_if = "Vec::is_empty")]
    pub router: Vec<Text>,

    /// Memory for packets that wait, in all queues together [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub buffer: Option<Text>,

    /// Within this time a dead link is found [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub keepalive: Option<Text>,

    /// How long to poll after activity before sleeping; more costs CPU time, less costs latency [default: 50us]
    #[arg(long, value_name = "TIME")]
    pub poll: Option<Text>,

    /// TCP congestion control, for example cubic [default: the system's; cubic on loopback]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<Text>,

    /// Allow plain TCP to and from other hosts, for a network that you trust
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub allow_plaintext: Option<bool>,

    /// The least severe lines of the log: off, error, warn, info, debug or trace; RUST_LOG goes over it [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<Text>,

    /// TLS on all links; last, as a table has to be in a TOML file.
    #[command(flatten)]
    #[serde(skip_serializing_if = "RawTls::is_empty")]
    pub tls: RawTls,
}

impl RawRouterConfig {
    /// These settings, and `file`'s where these say nothing. A list is taken whole from one of the two.
    #[must_use]
    pub fn or(self, file: Self) -> Self {
        Self {
            listen: self.listen.or(file.listen),
            router: if self.router.is_empty() { file.router } else { self.router },
            buffer: self.buffer.or(file.buffer),
            keepalive: self.keepalive.or(file.keepalive),
            poll: self.poll.or(file.poll),
            congestion: self.congestion.or(file.congestion),
            allow_plaintext: self.allow_plaintext.or(file.allow_plaintext),
            log_level: self.log_level.or(file.log_level),
            tls: self.tls.or(file.tls),
        }
    }
}

/// A checked configuration of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterConfig {
    /// Where adaptors and other routers connect.
    pub listen: SocketAddr,
    /// The routers to connect to.
    pub routers: Vec<SocketAddr>,
    /// Bytes that may wait in all queues together.
    pub buffer: usize,
    /// Within this time a dead link is found.
    pub keepalive: Duration,
    /// How long the event loop polls after activity before it sleeps.
    pub poll: Duration,
    /// TCP congestion control where the user asked for one.
    pub congestion: Option<String>,
    /// Whether plain TCP beyond this host is accepted.
    pub allow_plaintext: bool,
    /// The least severe lines of the log, as far as RUST_LOG says nothing.
    pub log_level: LevelFilter,
    /// Where the certificate, the key and the authority for TLS are, where it is used.
    pub tls: Option<TlsFiles>,
}

impl RouterConfig {
    /// Checks what was written.
    ///
    /// # Errors
    /// The first thing that is wrong, by key.
    pub fn new(raw: &RawRouterConfig) -> Result<Self, ConfigError> {
        let allow_plaintext = raw.allow_plaintext.unwrap_or(false);
        let listen = raw.listen.as_ref().ok_or(ConfigError::Missing("listen"))?;
        let tls = raw.tls.files()?;
        let any_address = any_address(allow_plaintext, tls.as_ref())?;
        let listen = listen_address(listen, any_address)?;
        let routers = routers(&raw.router, any_address)?;
        not_own("router", Some(listen), &routers)?;
        Ok(Self {
            listen,
            routers,
            buffer: buffer(raw.buffer.as_ref())?,
            keepalive: keepalive(raw.keepalive.as_ref())?,
            poll: poll(raw.poll.as_ref())?,
            congestion: raw.congestion.as_ref().map(parse_congestion).transpose()?,
            allow_plaintext,
            log_level: log_level(raw.log_level.as_ref())?,
            tls,
        })
    }

    /// The configuration as a TOML file that gives the same configuration again.
    pub fn to_toml(&self) -> String {
        let time = |duration| Some(Text(units::format_duration(duration)));
        let raw = RawRouterConfig {
            listen: Some(Text(self.listen.to_string())),
            router: self.routers.iter().map(|address| Text(address.to_string())).collect(),
            buffer: u64::try_from(self.buffer).ok().map(|bytes| Text(units::format_size(bytes))),
            keepalive: time(self.keepalive),
            poll: time(self.poll),
            congestion: self.congestion.clone().map(Text),
            allow_plaintext: Some(self.allow_plaintext),
            log_level: Some(log_level_text(self.log_level)),
            tls: self.tls.as_ref().map(RawTls::from).unwrap_or_default(),
        };
        // Strings, booleans, a list and a table of strings always have a TOML form.
        toml::to_string(&raw).unwrap_or_default()
    }
}

fn buffer(text: Option<&Text>) -> Result<usize, ConfigError> {
    let Some(Text(text)) = text else { return Ok(256 << 20) };
    let size = units::parse_size(text).filter(|&size| size >= MIN_BUFFER);
    size.and_then(|size| usize::try_from(size).ok()).ok_or_else(|| ConfigError::Malformed {
        key: "buffer",
        text: text.clone(),
        expected: "a size of 8M or more such as 256M",
    })
}
