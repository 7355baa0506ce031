//! Windows of other PCI functions: other nodes reach the registers of a device of this machine.

use crate::abi;
use crate::device::Device;
use crate::error::{CallKind, Error};
use crate::export::{ExportOptions, Exported};
use crate::place::{ParseError, Place};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A PCI function of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    domain: u32,
    /// Bus `[15:8]`, device `[7:3]`, function `[2:0]`.
    number: u32,
}

impl FromStr for Function {
    type Err = ParseError;

    /// `DOMAIN:BUS:DEVICE.FUNCTION`, as lspci shows it; without a domain it is 0.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let malformed = || ParseError::Function(text.to_owned());
        let number = |part: &str, limit: u32| {
            let digits = part.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(part);
            let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            value.filter(|value| *value <= limit).ok_or_else(malformed)
        };
        let (place, function) = text.rsplit_once('.').ok_or_else(malformed)?;
        let (place, device) = place.rsplit_once(':').ok_or_else(malformed)?;
        let (domain, bus) = place.rsplit_once(':').unwrap_or(("0", place));
        let (bus, device, function) = (number(bus, 0xff)?, number(device, 0x1f)?, number(function, 7)?);
        Ok(Self { domain: number(domain, u32::MAX)?, number: bus << 8 | device << 3 | function })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, number } = self;
        write!(f, "{domain:04x}:{:02x}:{:02x}.{}", number >> 8, number >> 3 & 0x1f, number & 7)
    }
}

/// A part of what is behind a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Whose it is.
    pub function: Function,
    /// Which one, 0 to 5.
    pub number: u32,
    /// Where in it the part begins, in bytes.
    pub start: u64,
    /// How many bytes, a multiple of 4096; to the end where it is not given.
    pub length: Option<u64>,
}

/// An exported part of a BAR. Dropping it ends the export.
#[derive(Debug)]
pub struct BarExport {
    window: Exported,
    length: u64,
}

impl BarExport {
    pub(crate) fn new(
        file: Arc<Device>,
        node: u32,
        bar: &Bar,
        options: &ExportOptions,
    ) -> Result<Self, Error> {
        let mut argument = abi::ExportBar {
            domain: bar.function.domain,
            function: bar.function.number,
            bar: bar.number,
            rights: options.rights(),
            start: bar.start,
            length: bar.length.unwrap_or(0),
            offset: options.offset.unwrap_or(abi::OFFSET_ANY),
            space: options.space.number(),
            reserved: 0,
            nodes: options.nodes.words(),
            name: options.name.bytes(),
        };
        // SAFETY: the window is of no memory of this process.
        unsafe { file.call(&mut argument) }.map_err(|source| {
            Error::call(
                CallKind::ExportBar,
                format!("export of BAR {} of {}", bar.number, bar.function),
                source,
            )
        })?;
        let window = Exported::new(file, node, options.space, argument.offset, CallKind::UnexportBar);
        Ok(Self { window, length: argument.length })
    }

    /// Where other nodes find it.
    pub const fn place(&self) -> Place {
        self.window.place()
    }

    /// How many bytes it has.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Ends the export now; when this returns no access of another node reaches the device any more. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Call`], where a reset, or the end of the function, had already ended it, or the adaptor is gone.
    pub fn end(&mut self) -> Result<(), Error> {
        self.window.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_named_as_lspci_does() {
        let function: Function = "0001:3f:1e.5".parse().unwrap();
        assert_eq!(function, Function { domain: 1, number: 0x3ff5 });
        assert_eq!(function.to_string(), "0001:3f:1e.5");
        assert_eq!("00:05.0".parse(), Ok(Function { domain: 0, number: 0x28 }));
        for text in [
            "",
            "5",
            "05.0",
            "00:05",
            "100:00:05.0.1",
            "0:100:05.0",
            "00:20.0",
            "00:05.8",
            "00:+5.0",
            ":05.0",
        ] {
            let error = text.parse::<Function>().unwrap_err().to_string();
            assert!(error.contains("DEVICE.FUNCTION"), "{text}: {error}");
        }
    }
}
