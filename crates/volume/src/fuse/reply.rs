//! Answers to the kernel.

use bytes::{BufMut, Bytes, BytesMut};

use super::limits::{BACKGROUND_MAX, NAME_MAX_BYTES, WRITE_MAX_BYTES};
use super::tree::{Node, Tree};
use super::wire::{
    ASYNC_DIRECT, ASYNC_READ, BIG_WRITES, Errno, MAJOR, MAX_PAGES, MINOR, OPEN_DIRECT, OPEN_PARALLEL_WRITES,
};

/// Bytes of the head of an answer.
const HEAD_BYTES: usize = 16;
/// Bytes of the answer to the first request.
const INIT_BYTES: usize = 64;
/// How long the kernel may take an attribute or a name for granted: they never change.
const VALID_SECONDS: u64 = 3600;
const BLOCK_BYTES: u32 = 4096;
const FOLDER_MODE: u32 = 0o040_700;
const FILE_MODE: u32 = 0o100_600;
/// Bits of a mode that say who may do what; the others say what it is.
const MAY_BITS: u32 = 0o7_777;
/// Kinds of entries of a folder.
const KIND_SHIFT: u32 = 12;

/// What follows the head, in pieces.
pub(super) type Body = Vec<Bytes>;

/// The head of an answer with `body`, or of a refusal.
pub(super) fn head(unique: u64, answer: &Result<Body, Errno>) -> [u8; HEAD_BYTES] {
    let (error, len) = match answer {
        Ok(body) => (0, body.iter().map(Bytes::len).sum()),
        Err(Errno(number)) => (-number, 0),
    };
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&((HEAD_BYTES + len) as u32).to_le_bytes());
    head[4..8].copy_from_slice(&error.to_le_bytes());
    head[8..].copy_from_slice(&unique.to_le_bytes());
    head
}

fn one(bytes: BytesMut) -> Body {
    vec![bytes.freeze()]
}

/// What is spoken, with those of the kernel's flags that are of use here.
pub(super) fn init(read_ahead: u32, flags: u32) -> Body {
    let mut out = BytesMut::with_capacity(INIT_BYTES);
    [MAJOR, MINOR, read_ahead].into_iter().for_each(|it| out.put_u32_le(it));
    out.put_u32_le(flags & (ASYNC_READ | BIG_WRITES | ASYNC_DIRECT | MAX_PAGES));
    out.put_u16_le(BACKGROUND_MAX);
    out.put_u16_le(BACKGROUND_MAX * 3 / 4);
    out.put_u32_le(WRITE_MAX_BYTES);
    // The grain of times, in nanoseconds.
    out.put_u32_le(1);
    out.put_u16_le((WRITE_MAX_BYTES / BLOCK_BYTES) as u16);
    out.put_bytes(0, INIT_BYTES - out.len());
    one(out)
}

fn mode_of(node: Node) -> u32 {
    match node {
        Node::Folder => FOLDER_MODE,
        Node::File => FILE_MODE,
    }
}

/// Whether a node has this mode already.
pub(super) fn has_mode(node: Node, mode: u32) -> bool {
    (mode ^ mode_of(node)) & MAY_BITS == 0
}

fn put_attributes(out: &mut BytesMut, tree: &Tree, node: Node) {
    let (size, links) = match node {
        Node::Folder => (0, 2),
        Node::File => (tree.size_bytes, 1),
    };
    let mode = mode_of(node);
    [tree.number_of(node), size, size.div_ceil(512), 0, 0, 0].into_iter().for_each(|it| out.put_u64_le(it));
    // Parts of seconds of three times, mode, links, user, group, device, block size, flags.
    let numbers = [0, 0, 0, mode, links, tree.user, tree.group, 0, BLOCK_BYTES, 0];
    numbers.into_iter().for_each(|it| out.put_u32_le(it));
}

/// What a node is like.
pub(super) fn attributes(tree: &Tree, node: Node) -> Body {
    let mut out = BytesMut::new();
    out.put_u64_le(VALID_SECONDS);
    out.put_u64_le(0);
    put_attributes(&mut out, tree, node);
    one(out)
}

/// A node that was looked up by its name.
pub(super) fn entry(tree: &Tree, node: Node) -> Body {
    let mut out = BytesMut::new();
    [tree.number_of(node), 0, VALID_SECONDS, VALID_SECONDS, 0].into_iter().for_each(|it| out.put_u64_le(it));
    put_attributes(&mut out, tree, node);
    one(out)
}

/// An open file or folder.
pub(super) fn opened(node: Node) -> Body {
    let flags = if node == Node::File { OPEN_DIRECT | OPEN_PARALLEL_WRITES } else { 0 };
    let mut out = BytesMut::new();
    out.put_u64_le(0);
    out.put_u64_le(u64::from(flags));
    one(out)
}

/// So many bytes are written.
pub(super) fn written(bytes: usize) -> Body {
    let mut out = BytesMut::new();
    out.put_u64_le(bytes as u64);
    one(out)
}

/// What is below a folder, from an offset on, as much as there is room for.
pub(super) fn entries(tree: &Tree, offset: u64, size: u32) -> Body {
    let mut out = BytesMut::new();
    let all = [(Node::Folder, "."), (Node::Folder, ".."), (Node::File, tree.name.as_str())];
    for (nth, (node, name)) in all.into_iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX))
    {
        let padding = name.len().next_multiple_of(8) - name.len();
        if out.len() + 24 + name.len() + padding > size as usize {
            break;
        }
        out.put_u64_le(tree.number_of(node));
        out.put_u64_le(nth as u64 + 1);
        out.put_u32_le(name.len() as u32);
        out.put_u32_le(mode_of(node) >> KIND_SHIFT);
        out.put_slice(name.as_bytes());
        out.put_bytes(0, padding);
    }
    one(out)
}

/// The volume as a file system of one file, all of it taken.
pub(super) fn statfs(tree: &Tree) -> Body {
    let mut out = BytesMut::new();
    [tree.size_bytes / u64::from(BLOCK_BYTES), 0, 0, 1, 0].into_iter().for_each(|it| out.put_u64_le(it));
    [BLOCK_BYTES, NAME_MAX_BYTES as u32, BLOCK_BYTES, 0].into_iter().for_each(|it| out.put_u32_le(it));
    out.put_bytes(0, 24);
    one(out)
}

/// What a control call gives back.
pub(super) fn control(data: Bytes) -> Body {
    vec![Bytes::from_static(&[0; 16]), data]
}
