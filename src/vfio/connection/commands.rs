//! What each command is: answered here from the device's shape, refused, or made into a request.

use super::super::descriptors::Descriptor;
use super::super::message::{
    Command, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, RegionAccess, RegionInfo, SetIrqs,
};
use super::super::request::{Echo, ReplyToken, Request};
use super::super::socket::Missing;
use super::super::version::Agreement;
use super::{Connection, Message};
use crate::descriptors::{self, Advice};
use bytes::{Buf, Bytes};
use log::error;
use vfio_bindings::bindings::vfio;

/// The interrupt indices that the device has: INTx, MSI and MSI-X.
const INTERRUPT_INDICES: u32 = vfio::VFIO_PCI_MSIX_IRQ_INDEX + 1;

impl Connection {
    pub(super) fn handle_command(&mut self, message: Message) -> Option<Request> {
        let Message { header, body, mut descriptors, missing } = message;
        match missing {
            None => {}
            Some(Missing::TooMany) => return self.refuse(&header, libc::EINVAL, "too many file descriptors"),
            Some(Missing::NoRoom) => {
                let advice = Advice(descriptors::limit());
                error!(
                    "no room for a guest's file descriptors (vfio-user command {}): {advice}",
                    header.command
                );
                self.answer_error(&header, libc::EMFILE);
                return None;
            }
        }
        let answer = match Command::n(header.command) {
            Some(Command::Version) => self.version(&header, &body),
            Some(Command::DeviceGetInfo) => self.device_info(&header, &body),
            Some(Command::DeviceGetRegionInfo) => self.region_info(&header, &body),
            Some(Command::GetIrqInfo) => self.irq_info(&header, &body),
            Some(Command::RegionRead) => return self.load(&header, &body),
            Some(Command::RegionWrite) => return self.store(&header, body),
            Some(Command::DmaMap) => {
                return match DmaMap::parse(&body) {
                    Some(map) if descriptors.len() <= 1 => {
                        let token = self.token(&header, Echo::Nothing);
                        Some(Request::DmaMap {
                            token,
                            map,
                            file: descriptors.pop().and_then(Descriptor::take),
                        })
                    }
                    Some(_) => self.refuse(&header, libc::EINVAL, "more than one file descriptor"),
                    None => self.too_short(&header),
                };
            }
            Some(Command::DmaUnmap) => {
                return match DmaUnmap::parse(&body) {
                    Some(unmap) => {
                        Some(Request::DmaUnmap { token: self.token(&header, Echo::Unmap(unmap)), unmap })
                    }
                    None => self.too_short(&header),
                };
            }
            Some(Command::SetIrqs) => {
                return match SetIrqs::parse(&body) {
                    Some(set) => {
                        let token = self.token(&header, Echo::Nothing);
                        let events = descriptors.into_iter().filter_map(Descriptor::take).collect();
                        Some(Request::SetIrqs { token, set, events })
                    }
                    None => self.too_short(&header),
                };
            }
            Some(Command::DeviceReset) => {
                return Some(Request::Reset { token: self.token(&header, Echo::Nothing) });
            }
            _ => Err((libc::EOPNOTSUPP, "a command that this server does not know".into())),
        };
        if let Err((errno, problem)) = answer {
            self.refuse(&header, errno, &problem);
        }
        None
    }

    fn version(&mut self, header: &Header, body: &[u8]) -> Answer {
        if self.agreed.is_some() {
            return Err((libc::EINVAL, "a second VERSION".into()));
        }
        let agreed = Agreement::with_client(body).map_err(|error| (libc::EINVAL, error.to_string()))?;
        self.agreed = Some(agreed);
        self.answer(header, &agreed.reply());
        Ok(())
    }

    fn device_info(&mut self, header: &Header, body: &[u8]) -> Answer {
        DeviceInfo::parse(body).ok_or_else(short)?;
        let reply = DeviceInfo {
            argsz: DeviceInfo::SIZE as u32,
            flags: vfio::VFIO_DEVICE_FLAGS_PCI | vfio::VFIO_DEVICE_FLAGS_RESET,
            regions: vfio::VFIO_PCI_NUM_REGIONS,
            interrupts: INTERRUPT_INDICES,
        };
        self.answer_with(header, |out| reply.emit(out));
        Ok(())
    }

    fn region_info(&mut self, header: &Header, body: &[u8]) -> Answer {
        let asked = RegionInfo::parse(body).ok_or_else(short)?;
        let size = self.shape.region_size(asked.index).ok_or_else(|| no_index("region", asked.index))?;
        let access = vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE;
        let reply = RegionInfo {
            argsz: RegionInfo::SIZE as u32,
            flags: if size > 0 { access } else { 0 },
            index: asked.index,
            capabilities: 0,
            size,
            offset: 0,
        };
        self.answer_with(header, |out| reply.emit(out));
        Ok(())
    }

    fn irq_info(&mut self, header: &Header, body: &[u8]) -> Answer {
        let asked = IrqInfo::parse(body).ok_or_else(short)?;
        if asked.index >= vfio::VFIO_PCI_NUM_IRQS {
            return Err(no_index("interrupt", asked.index));
        }
        if asked.index >= INTERRUPT_INDICES {
            // Error recovery and device request: QEMU asks always, and takes this answer quietly.
            self.answer_error(header, libc::EINVAL);
            return Ok(());
        }
        let msix = asked.index == vfio::VFIO_PCI_MSIX_IRQ_INDEX;
        let reply = IrqInfo {
            argsz: IrqInfo::SIZE as u32,
            flags: if msix { vfio::VFIO_IRQ_INFO_EVENTFD } else { 0 },
            index: asked.index,
            count: if msix { self.shape.vectors.into() } else { 0 },
        };
        self.answer_with(header, |out| reply.emit(out));
        Ok(())
    }

    fn load(&mut self, header: &Header, body: &[u8]) -> Option<Request> {
        let Some(access) = RegionAccess::parse(body) else { return self.too_short(header) };
        if let Err(problem) = self.check_access(&access) {
            return self.refuse(header, libc::EINVAL, problem);
        }
        let Some(token) = self.token(header, Echo::Access(access)) else {
            return self.refuse(header, libc::EINVAL, "a load whose reply is not wanted");
        };
        let len = usize::try_from(access.count).unwrap_or(0);
        Some(Request::Load { token, region: access.region, offset: access.offset, len })
    }

    fn store(&mut self, header: &Header, mut body: Bytes) -> Option<Request> {
        let Some(access) = RegionAccess::parse(&body) else { return self.too_short(header) };
        body.advance(RegionAccess::SIZE);
        let mut checked = self.check_access(&access);
        if usize::try_from(access.count).ok() != Some(body.len()) {
            checked = Err("a store whose count is not the length of its data");
        }
        if let Err(problem) = checked {
            return self.refuse(header, libc::EINVAL, problem);
        }
        let token = self.token(header, Echo::Access(access));
        Some(Request::Store { token, region: access.region, offset: access.offset, data: body })
    }

    fn check_access(&self, access: &RegionAccess) -> Result<(), &'static str> {
        let Some(size) = self.shape.region_size(access.region) else {
            return Err("an access to a region that there is not");
        };
        let max = self.agreed.map_or(0, |agreed| agreed.max_transfer);
        if !usize::try_from(access.count).is_ok_and(|count| (1..=max).contains(&count)) {
            return Err("an access of no bytes, or of more than max_data_xfer_size");
        }
        match access.offset.checked_add(access.count.into()) {
            Some(end) if end <= size => Ok(()),
            _ => Err("an access beyond the end of its region"),
        }
    }

    /// A token where a reply is expected. From then on the connection waits for it.
    fn token(&mut self, header: &Header, echo: Echo) -> Option<ReplyToken> {
        if header.no_reply() {
            return None;
        }
        self.waiting_for_reply = true;
        Some(ReplyToken { connection: self.id, id: header.id, command: header.command, echo })
    }

    fn too_short(&mut self, header: &Header) -> Option<Request> {
        self.refuse(header, libc::EINVAL, "a message that is too short for its command")
    }

    /// Answers a command with an error, if an answer is expected.
    pub(super) fn refuse(&mut self, header: &Header, errno: i32, problem: &str) -> Option<Request> {
        super::complain(header, problem);
        self.answer_error(header, errno);
        None
    }

    fn answer_error(&mut self, header: &Header, errno: i32) {
        if !header.no_reply() {
            Header::error_reply(header.id, header.command, errno).emit(&mut self.output);
        }
    }

    fn answer(&mut self, header: &Header, body: &[u8]) {
        if !header.no_reply() {
            Header::reply(header.id, header.command, body.len()).emit(&mut self.output);
            self.output.extend_from_slice(body);
        }
    }

    fn answer_with(&mut self, header: &Header, emit: impl FnOnce(&mut Vec<u8>)) {
        let mut body = Vec::new();
        emit(&mut body);
        self.answer(header, &body);
    }
}

/// Done, or an errno with what was wrong.
type Answer = Result<(), (i32, String)>;

fn short() -> (i32, String) {
    (libc::EINVAL, "a message that is too short for its command".into())
}

fn no_index(what: &str, index: u32) -> (i32, String) {
    (libc::EINVAL, format!("a question about {what} {index}, which there is not"))
}
