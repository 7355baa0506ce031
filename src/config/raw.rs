//! The configuration as it is written: on the command line, in a TOML file, or both.
//!
//! Every value is kept as text, so that whatever is wrong with it is reported in one way,
//! with its key, by [`Config::new`](super::Config::new).

use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::ConfigError;
use super::device::RawDevice;
use crate::net::TlsFiles;

/// A value as it was written. A TOML file may give a string or a whole number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Text(pub String);

impl FromStr for Text {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a whole number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// A list that may be written as its only element.
pub(super) mod one_or_many {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use super::Text;

    struct Visitor;

    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Vec<Text>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a string, a whole number, or a list of these")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<Text>, E> {
            Ok(vec![Text(text.to_owned())])
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<Text>, E> {
            Ok(vec![Text(number.to_string())])
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Vec<Text>, A::Error> {
            Vec::deserialize(de::value::SeqAccessDeserializer::new(list))
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Text>, D::Error> {
        deserializer.deserialize_any(Visitor)
    }

    pub fn serialize<S: Serializer>(list: &[Text], serializer: S) -> Result<S::Ok, S::Error> {
        match list {
            [only] => only.serialize(serializer),
            list => list.serialize(serializer),
        }
    }
}

/// Devices, with an error that says how a list of tables is written.
fn tables<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RawDevice>, D::Error> {
    struct Visitor;

    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Vec<RawDevice>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a table [[device]] for each device")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Vec<RawDevice>, A::Error> {
            Vec::deserialize(de::value::SeqAccessDeserializer::new(list))
        }
    }

    deserializer.deserialize_any(Visitor)
}

/// What a user can set, as written; what is absent has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawConfig {
    /// This node's id, 0 to 255 and below --nodes; with several buses that of bus 0
    #[arg(long, value_name = "ID")]
    pub node_id: Option<Text>,

    /// The vfio-user socket to which QEMU attaches the guest; given several times, there are as many buses for as many guests; an adaptor that
    /// only hosts devices needs none
    #[arg(long, value_name = "PATH")]
    #[serde(with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub socket_path: Vec<Text>,

    /// What other nodes' guests see this node as; given several times, for the buses in the order of --socket-path [default: none]
    #[arg(long, value_name = "NAME")]
    #[serde(with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub name: Vec<Text>,

    /// Low bits of node ids that are a bus number [default: as many as the buses need]
    #[arg(long, value_name = "N")]
    pub bus_bits: Option<Text>,

    /// Address on which other nodes may connect to this one [default: none]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<Text>,

    /// Another node, and where it listens; without an address it has to connect to this one
    #[arg(long, value_name = "ID[=IP:PORT]")]
    #[serde(deserialize_with = "one_or_many::deserialize", skip_serializing_if = "Vec::is_empty")]
    pub peer: Vec<Text>,

    /// A router, which takes traffic to every node that it reaches; can be given several times
    #[arg(long, value_name = "IP:PORT")]
    #[serde(deserialize_with = "one_or_many::deserialize", skip_serializing_if = "Vec::is_empty")]
    pub router: Vec<Text>,

    /// Windows in the access space: a power of two, the same at every node [default: 16]
    #[arg(long, value_name = "N")]
    pub nodes: Option<Text>,

    /// Bytes in each node's window: a power of two, the same at every node [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub window_size: Option<Text>,

    /// The longest time that an access of the guest may take, at most 4s [default: 500ms]
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<Text>,

    /// The part of the deadline that is kept for the lease [default: 150ms]
    #[arg(long, value_name = "TIME")]
    pub lease: Option<Text>,

    /// Within this time a dead link is found [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub keepalive: Option<Text>,

    /// How long a write buffer waits for neighbouring stores [default: 50us]
    #[arg(long, value_name = "TIME")]
    pub gather: Option<Text>,

    /// How long to poll after activity before sleeping; more costs CPU time, less costs latency [default: 50us]
    #[arg(long, value_name = "TIME")]
    pub poll: Option<Text>,
    /// How long the DMA engine looks at a queue's ring after work before it needs a doorbell; more costs CPU time, less costs latency [default: 50us]
    #[arg(long, value_name = "TIME")]
    pub queue_poll: Option<Text>,

    /// TCP congestion control, for example cubic [default: the system's; cubic on loopback]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<Text>,

    /// Allow plain TCP to and from other hosts, for a network that you trust
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub allow_plaintext: Option<bool>,

    /// The least severe lines of the log: off, error, warn, info, debug or trace; RUST_LOG goes over it [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<Text>,

    /// TLS on all links; after the values, as a table has to be in a TOML file.
    #[command(flatten)]
    #[serde(skip_serializing_if = "RawTls::is_empty")]
    pub tls: RawTls,

    /// A device that this node hosts for others: kind=memory,name=NAME,size=SIZE[,file=PATH] or
    /// kind=scratchpad,name=NAME[,size=BYTES]; and offset=OFFSET, rights=rw|ro|wo, nodes=all|ID|ID-ID. Can be given several
    /// times
    #[arg(long, value_name = "KEY=VALUE,...")]
    #[serde(deserialize_with = "tables", skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<RawDevice>,
}

/// The files for TLS as written: all of them or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RawTls {
    /// PEM file with this node's certificate; switches TLS on for all links
    #[arg(long = "tls-cert", value_name = "FILE")]
    pub cert: Option<Text>,

    /// PEM file with the private key of the certificate
    #[arg(long = "tls-key", value_name = "FILE")]
    pub key: Option<Text>,

    /// PEM file with the authority that signs the certificates of the mesh
    #[arg(long = "tls-ca", value_name = "FILE")]
    pub ca: Option<Text>,
}

impl RawTls {
    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These files, and `file`'s where these say nothing.
    #[must_use]
    pub fn or(self, file: Self) -> Self {
        Self { cert: self.cert.or(file.cert), key: self.key.or(file.key), ca: self.ca.or(file.ca) }
    }

    /// The files, where TLS is to be used.
    ///
    /// # Errors
    /// Where some are given and others not.
    pub fn files(&self) -> Result<Option<TlsFiles>, ConfigError> {
        if self.is_empty() {
            return Ok(None);
        }
        let path = |key, text: &Option<Text>| match text {
            Some(Text(text)) if !text.is_empty() => Ok(PathBuf::from(text)),
            _ => Err(ConfigError::TlsIncomplete(key)),
        };
        Ok(Some(TlsFiles {
            cert: path("tls-cert", &self.cert)?,
            key: path("tls-key", &self.key)?,
            ca: path("tls-ca", &self.ca)?,
        }))
    }
}

impl From<&TlsFiles> for RawTls {
    fn from(files: &TlsFiles) -> Self {
        let text = |path: &Path| Some(Text(path.display().to_string()));
        Self { cert: text(&files.cert), key: text(&files.key), ca: text(&files.ca) }
    }
}

impl RawConfig {
    /// These settings, and `file`'s where these say nothing. A list is taken whole from one of the two.
    #[must_use]
    pub fn or(self, file: Self) -> Self {
        Self {
            node_id: self.node_id.or(file.node_id),
            socket_path: if self.socket_path.is_empty() { file.socket_path } else { self.socket_path },
            name: if self.name.is_empty() { file.name } else { self.name },
            bus_bits: self.bus_bits.or(file.bus_bits),
            listen: self.listen.or(file.listen),
            peer: if self.peer.is_empty() { file.peer } else { self.peer },
            router: if self.router.is_empty() { file.router } else { self.router },
            nodes: self.nodes.or(file.nodes),
            window_size: self.window_size.or(file.window_size),
            deadline: self.deadline.or(file.deadline),
            lease: self.lease.or(file.lease),
            keepalive: self.keepalive.or(file.keepalive),
            gather: self.gather.or(file.gather),
            poll: self.poll.or(file.poll),
            queue_poll: self.queue_poll.or(file.queue_poll),
            congestion: self.congestion.or(file.congestion),
            allow_plaintext: self.allow_plaintext.or(file.allow_plaintext),
            log_level: self.log_level.or(file.log_level),
            tls: self.tls.or(file.tls),
            device: if self.device.is_empty() { file.device } else { self.device },
        }
    }
}

/// Bytes that a configuration file may have: more than any needs, and little to read before a device or a pipe that never ends is refused.
pub(super) const MAX_FILE: u64 = 1 << 20;

/// Reads a TOML file with the keys of the command line's options.
///
/// # Errors
/// Where the file can't be read, is not TOML, or has an unknown key.
pub fn read_file<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_FILE.saturating_add(1)).read_to_string(&mut text));
    let size = read.map_err(|error| ConfigError::FileUnread { path: path.to_owned(), error })?;
    if u64::try_from(size).is_ok_and(|size| size > MAX_FILE) {
        return Err(ConfigError::FileTooLarge { path: path.to_owned() });
    }
    toml::from_str(&text).map_err(|error| ConfigError::FileSyntax {
        path: path.to_owned(),
        line: error.span().map_or(1, |span| line_of(&text, span.start)),
        message: error.message().replace('\n', " "),
    })
}

/// The line, counted from 1, in which byte `position` of `text` stands.
fn line_of(text: &str, position: usize) -> usize {
    text.bytes().take(position).filter(|&byte| byte == b'\n').count().saturating_add(1)
}
