//! A virtual machine is written back as it was read, but for what is changed: field by field on the wire, because a MOC of a later version
//! has fields that are not known here, and a write without them would take them away. Pure.

use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field},
};

use crate::wire::{Status, Tag, compute::Disk, compute::VirtualMachine};

/// By their numbers in MOC's messages.
const STORAGE: u32 = 3;
pub const STATUS: u32 = 8;
pub const POWER: u32 = 14;
const TAGS: u32 = 16;
const OS_DISK: u32 = 1;
const TAG: u32 = 1;

/// What is changed about one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineEdit {
    /// The disk that it boots from.
    pub os_disk: Option<String>,
    /// One tag, by its key.
    pub tag: Option<(String, String)>,
}

/// A field by its number, and all of its bytes.
type Field<'a> = (u32, WireType, &'a [u8]);

/// Every field of a message, as its bytes are.
fn fields(message: &[u8]) -> Result<Vec<Field<'_>>, DecodeError> {
    let mut rest = message;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let whole = rest;
        let (number, wire) = decode_key(&mut rest)?;
        skip_field(wire, number, &mut rest, DecodeContext::default())?;
        found.push((number, wire, &whole[..whole.len() - rest.len()]));
    }
    Ok(found)
}

/// The contents of a message inside a message. In more than one piece they are one after the other, as the format has it.
fn inside(message: &[u8], number: u32) -> Result<Vec<u8>, DecodeError> {
    let mut contents = Vec::new();
    for (found, wire, mut bytes) in fields(message)? {
        if found == number && wire == WireType::LengthDelimited {
            decode_key(&mut bytes)?;
            prost::encoding::decode_varint(&mut bytes)?;
            contents.extend_from_slice(bytes);
        }
    }
    Ok(contents)
}

/// A message inside a message, at its end.
pub fn push(message: &mut Vec<u8>, number: u32, contents: &[u8]) {
    encode_key(number, WireType::LengthDelimited, message);
    encode_varint(contents.len() as u64, message);
    message.extend_from_slice(contents);
}

/// The message without a field.
pub fn without(message: &[u8], number: u32) -> Result<Vec<u8>, DecodeError> {
    let others = fields(message)?
        .into_iter()
        .filter(|(found, ..)| *found != number);
    Ok(others.flat_map(|(_, _, bytes)| bytes).copied().collect())
}

/// The message with this in the place of the field.
fn replaced(message: &[u8], number: u32, contents: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut out = without(message, number)?;
    push(&mut out, number, contents);
    Ok(out)
}

/// The virtual machine to write: over the version that was read, and with nothing else of its status.
pub fn changed(machine: &[u8], change: &MachineEdit) -> Result<Vec<u8>, DecodeError> {
    let read = VirtualMachine::decode(machine)?;
    let version = Status {
        version: read.status.and_then(|status| status.version),
        ..Status::default()
    };
    let mut out = replaced(&without(machine, POWER)?, STATUS, &version.encode_to_vec())?;
    if let Some(name) = &change.os_disk {
        let storage = inside(&out, STORAGE)?;
        let disk = inside(&storage, OS_DISK)?;
        // Its other fields, such as how it is encrypted, are those of the machine.
        let named = Disk {
            disk_name: name.clone(),
        };
        let mut fresh = named.encode_to_vec();
        for (number, _, bytes) in fields(&disk)? {
            if number != 1 {
                fresh.extend_from_slice(bytes);
            }
        }
        let storage = replaced(&storage, OS_DISK, &fresh)?;
        out = replaced(&out, STORAGE, &storage)?;
    }
    if let Some((key, value)) = &change.tag {
        let tags = inside(&out, TAGS)?;
        let mut fresh = Vec::new();
        for (number, wire, bytes) in fields(&tags)? {
            let is_it = number == TAG && wire == WireType::LengthDelimited && {
                let mut contents = bytes;
                decode_key(&mut contents)?;
                prost::encoding::decode_varint(&mut contents)?;
                Tag::decode(contents)?.key == *key
            };
            if !is_it {
                fresh.extend_from_slice(bytes);
            }
        }
        let tag = Tag {
            key: key.clone(),
            value: value.clone(),
        };
        push(&mut fresh, TAG, &tag.encode_to_vec());
        out = replaced(&out, TAGS, &fresh)?;
    }
    Ok(out)
}

/// What a tag says.
pub fn tag<'a>(machine: &'a VirtualMachine, key: &str) -> Option<&'a str> {
    let tags = machine.tags.as_ref()?.tags.iter();
    tags.rev()
        .find(|tag| tag.key == key)
        .map(|tag| tag.value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{PowerState, Tags, Version, compute::StorageConfiguration};

    fn machine() -> Vec<u8> {
        let machine = VirtualMachine {
            name: "vm".to_owned(),
            group_name: "site".to_owned(),
            storage: Some(StorageConfiguration {
                os_disk: Some(Disk {
                    disk_name: "old".to_owned(),
                }),
                data_disks: vec![Disk {
                    disk_name: "data".to_owned(),
                }],
                image_reference: "image".to_owned(),
            }),
            status: Some(Status {
                version: Some(Version {
                    number: "7".to_owned(),
                }),
                last_error: Some(crate::wire::Error::default()),
                ..Status::default()
            }),
            tags: Some(Tags {
                tags: vec![Tag {
                    key: "owner".to_owned(),
                    value: "ada".to_owned(),
                }],
            }),
            power_state: PowerState::Off.into(),
            ..VirtualMachine::default()
        };
        let mut bytes = machine.encode_to_vec();
        // A field of a later version, and one of the network that is not read here.
        push(&mut bytes, 99, b"later");
        push(&mut bytes, 5, b"\x0a\x05nic-1");
        bytes
    }

    #[test]
    fn what_is_not_changed_stays_to_the_byte() {
        let change = MachineEdit {
            os_disk: Some("new".to_owned()),
            tag: Some(("mine".to_owned(), "1".to_owned())),
        };
        let out = changed(&machine(), &change).expect("a machine");
        let read = VirtualMachine::decode(out.as_slice()).expect("a machine");
        let storage = read.storage.clone().expect("storage");
        assert_eq!(storage.os_disk.expect("a disk").disk_name, "new");
        assert_eq!(storage.data_disks[0].disk_name, "data");
        assert_eq!(storage.image_reference, "image");
        assert_eq!(
            (tag(&read, "owner"), tag(&read, "mine")),
            (Some("ada"), Some("1"))
        );
        let status = read.status.expect("status");
        assert_eq!(status.version.expect("a version").number, "7");
        assert_eq!(status.last_error, None);
        for (number, contents) in [(99, b"later".as_slice()), (5, b"\x0a\x05nic-1")] {
            assert_eq!(inside(&out, number).expect("a field"), contents);
        }
        // Once more changes the tag and makes no second one.
        let again = MachineEdit {
            tag: Some(("mine".to_owned(), "2".to_owned())),
            ..MachineEdit::default()
        };
        let out = changed(&out, &again).expect("a machine");
        let read = VirtualMachine::decode(out.as_slice()).expect("a machine");
        assert_eq!(tag(&read, "mine"), Some("2"));
        assert_eq!(read.tags.expect("tags").tags.len(), 2);
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error() {
        for bytes in [&[0xff][..], &[0x0a, 0xff, 0xff], &[0x42, 0x05, 1]] {
            assert!(changed(bytes, &MachineEdit::default()).is_err(), "{bytes:?}");
        }
    }
}
