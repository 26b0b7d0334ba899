//! The least of HTTP/2 and gRPC that asks etcd for keys: calls of one message each, as many at once as the caller likes, on one connection.
//!
//! Requests have the same few headers, none of which is put into a table, so that nothing need be remembered of them. Of answers only
//! this is looked at: which calls have ended, and how many bytes of messages came. A call that failed has none.

use std::io;

/// Bytes of a frame's header: length (3), type, flags, stream.
const FRAME_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW: u8 = 8;
/// Flags: the call's last frame, or an acknowledgement; all headers.
const END: u8 = 1;
const END_HEADERS: u8 = 4;
/// So many bytes of messages may come before the server is told to go on.
const WINDOW_BYTES: u32 = 1 << 30;
/// Before each message: not compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The value of a key, linearizable.
    Range,
    /// Gives a key a value.
    Put,
}

/// One side of a connection: which call comes next, and what came of those under way.
#[derive(Default)]
pub struct Calls {
    next: u32,
    ended: usize,
    data_bytes: usize,
    /// Bytes that came since the server was told to go on.
    taken: u32,
}

/// What begins a connection.
pub fn preface() -> Vec<u8> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    push_frame(&mut out, (SETTINGS, 0), 0, &[]);
    push_frame(&mut out, (WINDOW, 0), 0, &WINDOW_BYTES.to_be_bytes());
    out
}

impl Calls {
    /// Begins a call that is about `key`; `value` is what it is to have.
    pub fn push(&mut self, out: &mut Vec<u8>, method: Method, key: &[u8], value: &[u8]) {
        let stream = 2 * self.next + 1;
        self.next += 1;
        push_frame(out, (HEADERS, END_HEADERS), stream, &headers(method));
        let mut message = Vec::with_capacity(PREFIX_BYTES + 8 + key.len() + value.len());
        message.extend_from_slice(&[0; PREFIX_BYTES]);
        for (field, bytes) in [(1, key), (2, value)].into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            message.push(field << 3 | 2);
            push_varint(&mut message, bytes.len());
            message.extend_from_slice(bytes);
        }
        let len = (message.len() - PREFIX_BYTES) as u32;
        message[1..PREFIX_BYTES].copy_from_slice(&len.to_be_bytes());
        push_frame(out, (DATA, END), stream, &message);
    }

    /// Takes the frames that have come as a whole; returns how many bytes they have. What must be answered goes to `out`.
    pub fn take(&mut self, received: &[u8], out: &mut Vec<u8>) -> usize {
        let mut taken = 0;
        while let Some(header) = received[taken..].get(..FRAME_BYTES) {
            let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            let end = taken + FRAME_BYTES + len as usize;
            let Some(payload) = received.get(taken + FRAME_BYTES..end) else { break };
            match (header[3], header[4] & END != 0) {
                (kind @ (SETTINGS | PING), false) => {
                    push_frame(out, (kind, END), 0, if kind == PING { payload } else { &[] })
                }
                (kind @ (HEADERS | DATA), is_end) => {
                    self.ended += usize::from(is_end);
                    if kind == DATA {
                        self.data_bytes += payload.len();
                        self.taken += len;
                    }
                }
                _ => {}
            }
            taken = end;
        }
        if self.taken > WINDOW_BYTES / 2 {
            push_frame(out, (WINDOW, 0), 0, &self.taken.to_be_bytes());
            self.taken = 0;
        }
        taken
    }

    /// Whether `count` calls have ended, each with a message of `least` bytes or more; counting begins anew then.
    pub fn have_ended(&mut self, count: usize, least: usize) -> io::Result<bool> {
        if self.ended < count {
            return Ok(false);
        }
        let is_right = self.ended == count && self.data_bytes >= count * (PREFIX_BYTES + least);
        (self.ended, self.data_bytes) = (0, 0);
        match is_right {
            true => Ok(true),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "a call failed, or has no value")),
        }
    }
}

fn push_frame(out: &mut Vec<u8>, (kind, flags): (u8, u8), stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The headers of a call. Names come from the table that every connection has from the beginning, by their numbers there.
fn headers(method: Method) -> Vec<u8> {
    let path: &[u8] = match method {
        Method::Range => b"/etcdserverpb.KV/Range",
        Method::Put => b"/etcdserverpb.KV/Put",
    };
    // `:method: POST`, `:scheme: http`.
    let mut out = vec![0x83, 0x86];
    // `:path`, `:authority`, `content-type`, and one that is named in full.
    for (name, value) in [
        (&[4_u8][..], path),
        (&[1], b"localhost"),
        (&[0x0f, 0x10], b"application/grpc"),
        (b"\0\x02te", b"trailers"),
    ] {
        out.extend_from_slice(name);
        out.push(value.len() as u8);
        out.extend_from_slice(value);
    }
    out
}

fn push_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_bytes_of_the_protocols() {
        let (mut calls, mut out) = (Calls::default(), Vec::new());
        calls.push(&mut out, Method::Range, b"k1", b"");
        calls.push(&mut out, Method::Range, b"k2", b"");
        let second = out.len() / 2;
        assert_eq!(out[..9], [0, 0, 69, 1, 4, 0, 0, 0, 1], "headers: length, type, flags, stream");
        assert_eq!(out[second - 18..second], *b"\0\0\x09\0\x01\0\0\0\x01\0\0\0\0\x04\x0a\x02k1");
        assert_eq!(out[second + 5..second + 9], 3_u32.to_be_bytes());
    }

    #[test]
    fn calls_end_when_all_have_and_one_without_a_message_has_failed() {
        let (mut calls, mut out, mut came) = (Calls::default(), Vec::new(), Vec::new());
        push_frame(&mut came, (PING, 0), 0, b"12345678");
        push_frame(&mut came, (HEADERS, END_HEADERS), 1, &[0x88]);
        push_frame(&mut came, (DATA, 0), 1, b"\0\0\0\0\x03abc");
        push_frame(&mut came, (HEADERS, END_HEADERS | END), 1, &[0x88]);
        for len in 0..came.len() {
            assert!(Calls::default().take(&came[..len], &mut Vec::new()) < came.len());
        }
        assert_eq!(calls.take(&came, &mut out), came.len());
        assert_eq!(out[..9], [0, 0, 8, PING, END, 0, 0, 0, 0]);
        assert!(!calls.have_ended(2, 3).expect("one is under way"));
        push_frame(&mut came, (HEADERS, END_HEADERS | END), 3, &[0x88]);
        let (mut failed, mut whole) = (Calls::default(), Calls::default());
        failed.take(&came, &mut out);
        assert!(failed.have_ended(2, 3).is_err());
        whole.take(&came[..came.len() - 10], &mut out);
        assert!(whole.have_ended(1, 3).expect("it has ended"));
    }
}
