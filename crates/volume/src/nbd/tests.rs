//! The protocol alone: conversations byte by byte, and input that is cut short or senseless.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::real::golden::{self, hex};

use super::handshake::{ExportInfo, Handshake, Next, NoExport, ProtocolError, Terms};
use super::limits::{OPTIONS_MAX, PAYLOAD_MAX_BYTES, REQUESTS_MAX, REQUESTS_MAX_BYTES};
use super::reply::{Part, Replies};
use super::transmission::{self, Command, Request, Transmission};
use super::wire::{Errno, OPTION_MAGIC, REQUEST_MAGIC, command, export, flag, info, option};

/// A small generator of our own: the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn export() -> ExportInfo {
    ExportInfo {
        name: "disk".into(),
        description: "a disk of 1 MiB".into(),
        size_bytes: 1 << 20,
        read_only: false,
        in_transaction: false,
        same_for_all: true,
    }
}

fn an_option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u64(OPTION_MAGIC);
    bytes.put_u32(kind);
    bytes.put_u32(data.len() as u32);
    bytes.put_slice(data);
    bytes
}

fn export_ask(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    data.put_u16(infos.len() as u16);
    infos.iter().for_each(|&info| data.put_u16(info));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    data.put_u32(queries.len() as u32);
    for query in queries {
        data.put_u32(query.len() as u32);
        data.put_slice(query.as_bytes());
    }
    data
}

/// How a conversation ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Waits,
    Serves(Terms),
    Ends,
    Fails(ProtocolError),
}

/// What the server says to a client that sends all of this, in pieces of at most `piece` bytes.
fn talk(client: &[u8], piece: usize) -> (Vec<u8>, End) {
    let (mut out, mut received) = (BytesMut::new(), BytesMut::new());
    let mut handshake = Handshake::new(vec!["disk".to_owned()], &mut out);
    let mut pieces = client.chunks(piece);
    let end = loop {
        let next = match handshake.next(&mut received, &mut out) {
            Err(error) => break End::Fails(error),
            Ok(next) => next,
        };
        match next {
            Next::Read => match pieces.next() {
                Some(piece) => received.put_slice(piece),
                None => break End::Waits,
            },
            Next::End => break End::Ends,
            Next::Open(name) => {
                let info = export();
                let found = match name.as_str() {
                    "" | "disk" => Ok(&info),
                    other => Err(NoExport::Unknown(format!("no export `{other}`"))),
                };
                match handshake.opened(found, &mut out) {
                    Err(error) => break End::Fails(error),
                    Ok(Some(terms)) => break End::Serves(terms),
                    Ok(None) => {}
                }
            }
        }
    };
    (out.to_vec(), end)
}

fn flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

/// What today's clients say, each with a name.
fn conversations() -> Vec<(&'static str, Vec<u8>)> {
    let structured = an_option(option::STRUCTURED_REPLY, b"");
    let all = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
    let set = an_option(option::SET_META_CONTEXT, &contexts("", &["base:allocation"]));
    let go = an_option(option::GO, &export_ask("", &all));
    vec![
        ("export by name, with padding", [flags(1), an_option(option::EXPORT_NAME, b"disk")].concat()),
        ("export by name, without padding", [flags(3), an_option(option::EXPORT_NAME, b"")].concat()),
        (
            "list, then abort",
            [flags(3), an_option(option::LIST, b""), an_option(option::ABORT, b"")].concat(),
        ),
        ("go, simple replies", [flags(3), an_option(option::GO, &export_ask("disk", &[]))].concat()),
        ("go, structured replies and allocation", [flags(3), structured.clone(), set, go].concat()),
        (
            "unknown option, unknown export, list of contexts, info",
            [
                flags(3),
                an_option(5, b""),
                an_option(option::INFO, &export_ask("else", &[])),
                structured,
                an_option(option::LIST_META_CONTEXT, &contexts("", &[])),
                an_option(option::LIST_META_CONTEXT, &contexts("", &["qemu:"])),
                an_option(option::INFO, &export_ask("", &all)),
            ]
            .concat(),
        ),
    ]
}

#[test]
fn handshakes_have_golden_bytes() {
    let mut text = String::from(
        "What clients and the server say before transmission, in hexadecimal; docs/protocol/nbd.md.\n",
    );
    for (name, client) in conversations() {
        let (server, end) = talk(&client, usize::MAX);
        text += &format!("\n{name}: {end:?}\nclient\n{}server\n{}", hex(&client), hex(&server));
    }
    golden::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/nbd_handshakes.txt"), &text);
}

#[test]
fn one_piece_can_be_asked_for_only_where_replies_may_have_several() {
    let by_name = an_option(option::EXPORT_NAME, b"disk");
    let offered = |client: &[&[u8]]| {
        let (server, _) = talk(&[&flags(3), client.concat().as_slice()].concat(), usize::MAX);
        let last = server.last_chunk().expect("an export ends with its flags");
        u16::from_be_bytes(*last) & export::SEND_DF != 0
    };
    assert!(!offered(&[&by_name]));
    assert!(offered(&[&an_option(option::STRUCTURED_REPLY, b""), &by_name]));
}

#[test]
fn a_conversation_is_the_same_in_pieces_of_any_size() {
    for (name, client) in conversations() {
        let whole = talk(&client, usize::MAX);
        for piece in [1, 3, 17] {
            assert_eq!(talk(&client, piece), whole, "{name} in pieces of {piece}");
        }
    }
}

#[test]
fn a_conversation_that_is_cut_short_waits_or_has_ended() {
    for (name, client) in conversations() {
        for len in 0..client.len() {
            let (_, end) = talk(&client[..len], usize::MAX);
            assert_eq!(end, End::Waits, "{name}: {len} bytes");
        }
    }
}

#[test]
fn contexts_that_were_chosen_for_another_name_do_not_count() {
    let structured = an_option(option::STRUCTURED_REPLY, b"");
    let set = an_option(option::SET_META_CONTEXT, &contexts("disk", &["x-other:y", "base:allocation"]));
    let go = |name| an_option(option::GO, &export_ask(name, &[]));
    let status_of = |name| match talk(&[flags(3), structured.clone(), set.clone(), go(name)].concat(), 64) {
        (_, End::Serves(terms)) => terms.status,
        (_, end) => panic!("{end:?}"),
    };
    assert!(status_of("disk") && !status_of(""));
}

#[test]
fn contexts_that_were_chosen_before_do_not_count_when_a_later_choice_is_refused() {
    // The protocol's text: a choice replaces all that were made before, also when it fails.
    let set = |data: &[u8]| an_option(option::SET_META_CONTEXT, data);
    let chosen = set(&contexts("disk", &["base:allocation"]));
    let status_after = |then: &[u8]| {
        let structured = an_option(option::STRUCTURED_REPLY, b"");
        let go = an_option(option::GO, &export_ask("disk", &[]));
        match talk(&[&flags(3)[..], &structured, &chosen, then, &go].concat(), 64) {
            (_, End::Serves(terms)) => terms.status,
            (_, end) => panic!("{end:?}"),
        }
    };
    assert!(status_after(&[]));
    let malformed = set(&contexts("disk", &["base:allocation"])[..8]);
    let of_none_such = set(&contexts("else", &["base:allocation"]));
    let too_long = set(&vec![0; 100_000]);
    for refused in [malformed, of_none_such, too_long] {
        assert!(!status_after(&refused), "{} bytes", refused.len());
    }
    let listed = an_option(option::LIST_META_CONTEXT, &contexts("else", &[]));
    assert!(status_after(&listed), "a list is no choice");
}

#[test]
fn senseless_options_are_refused_and_the_conversation_goes_on() {
    let long_name = [&5000_u32.to_be_bytes()[..], &[b'x'; 5000], &[0, 0]].concat();
    let cases: [(u32, Vec<u8>, u32); 7] = [
        (option::LIST, b"x".to_vec(), 3),
        (option::GO, b"".to_vec(), 3),
        (option::GO, [&export_ask("disk", &[])[..], b"x"].concat(), 3),
        (option::INFO, long_name, 9),
        (option::INFO, export_ask("else", &[]), 6),
        (option::SET_META_CONTEXT, contexts("", &[]), 3),
        (77, vec![0; 100_000], 9),
    ];
    for (kind, data, expected) in cases {
        let client = [flags(3), an_option(kind, &data), an_option(option::ABORT, b"")].concat();
        let (server, end) = talk(&client, 4096);
        assert_eq!(end, End::Ends, "option {kind}");
        let answer = &server[18..];
        assert_eq!(answer[8..12], kind.to_be_bytes(), "option {kind}");
        assert_eq!(answer[12..16], (0x8000_0000 + expected).to_be_bytes(), "option {kind}");
    }
}

#[test]
fn what_is_no_nbd_ends_the_connection() {
    let fails = |client: Vec<u8>| match talk(&client, usize::MAX) {
        (_, End::Fails(error)) => error.to_string(),
        (_, end) => panic!("{end:?}"),
    };
    assert!(fails(flags(8)).contains("flags are 0x8"));
    assert!(fails([flags(3), b"GET / HTTP/1.1\r\n".to_vec()].concat()).contains("an option: found"));
    assert!(fails([flags(3), an_option(option::EXPORT_NAME, b"else")].concat()).contains("`else`"));
    assert!(fails([flags(3), an_option(option::EXPORT_NAME, &[0; 70_000])].concat()).contains("70000"));
    let many = (0..=OPTIONS_MAX).flat_map(|_| an_option(option::LIST, b""));
    assert!(fails(flags(3).into_iter().chain(many).collect()).contains("more than 1024"));
}

fn a_request(kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(REQUEST_MAGIC);
    bytes.put_u16(flags);
    bytes.put_u16(kind);
    bytes.put_u64(7);
    bytes.put_u64(offset);
    bytes.put_u32(len);
    bytes.put_slice(payload);
    bytes
}

const ALL: Terms = Terms { structured: true, status: true };
const OLD: Terms = Terms { structured: false, status: false };

/// The first request of these bytes, or what was answered at once.
fn first(info: &ExportInfo, terms: Terms, bytes: &[u8]) -> (transmission::Next, Vec<u8>) {
    let (mut received, mut out) = (BytesMut::from(bytes), BytesMut::new());
    let next = next(&mut Transmission::new(info, terms), &mut received, &mut out).expect("requests");
    (next, out.to_vec())
}

/// How it goes on where there is always room.
fn next(
    transmission: &mut Transmission,
    received: &mut BytesMut,
    out: &mut BytesMut,
) -> Result<transmission::Next, ProtocolError> {
    transmission.next(received, out, |bytes| bytes > 0)
}

#[test]
fn requests_are_decoded() {
    let expect = |bytes: Vec<u8>, command: Command, cost_bytes| {
        let (next, out) = first(&export(), ALL, &bytes);
        assert_eq!(next, transmission::Next::Do(Request { cookie: 7, command, cost_bytes }));
        assert!(out.is_empty());
        for len in 0..bytes.len() {
            let (next, out) = first(&export(), ALL, &bytes[..len]);
            assert!(matches!(next, transmission::Next::Read(missing) if missing <= bytes.len() - len));
            assert!(out.is_empty());
        }
    };
    let range = 512..1536;
    let (at, len) = (512, 1024);
    let data = vec![5; 1024];
    expect(
        a_request(command::READ, 0, at, len, b""),
        Command::Read { range: range.clone(), whole: false },
        1024,
    );
    expect(
        a_request(command::READ, flag::DF, at, len, b""),
        Command::Read { range: range.clone(), whole: true },
        1024,
    );
    expect(
        a_request(command::WRITE, flag::FUA, at, len, &data),
        Command::Write { offset: at, data: Bytes::from(data.clone()), stable: true },
        1024,
    );
    expect(a_request(command::FLUSH, 0, 0, 0, b""), Command::Flush, 0);
    let trim = Command::Trim { range: range.clone(), stable: false };
    expect(a_request(command::TRIM, 0, at, len, b""), trim, 0);
    let zero = Command::Zero { range: range.clone(), stable: true, stored: true };
    expect(a_request(command::WRITE_ZEROES, flag::NO_HOLE | flag::FUA, at, len, b""), zero, 0);
    expect(a_request(command::CACHE, 0, at, len, b""), Command::Cache { range: range.clone() }, 1024);
    let status = Command::Status { range, one: true };
    expect(a_request(command::BLOCK_STATUS, flag::REQ_ONE, at, len, b""), status, 32 << 10);
}

/// The error of the one reply in `out`.
fn error_of(out: &[u8]) -> u32 {
    let at = if out[..4] == 0x6744_6698_u32.to_be_bytes() { 4 } else { 20 };
    u32::from_be_bytes(out[at..at + 4].try_into().expect("four bytes"))
}

#[test]
fn requests_that_cannot_be_done_are_answered_and_the_next_one_is_found() {
    let read_only = ExportInfo { read_only: true, ..export() };
    let end = export().size_bytes;
    let over = PAYLOAD_MAX_BYTES + 1;
    let cases = [
        (&read_only, ALL, a_request(command::WRITE, 0, 0, 4, b"abcd"), Errno::NotPermitted),
        (&read_only, ALL, a_request(command::TRIM, 0, 0, 4, b""), Errno::NotPermitted),
        (&read_only, ALL, a_request(command::WRITE_ZEROES, 0, 0, 4, b""), Errno::NotPermitted),
        (&export(), ALL, a_request(command::WRITE, 0, end - 3, 4, b"abcd"), Errno::NoSpace),
        (&export(), ALL, a_request(command::WRITE_ZEROES, 0, end, 4, b""), Errno::NoSpace),
        (&export(), ALL, a_request(command::READ, 0, u64::MAX, 4, b""), Errno::Invalid),
        (&export(), OLD, a_request(command::READ, 0, end, 1, b""), Errno::Invalid),
        (&export(), ALL, a_request(command::TRIM, 0, end - 1, 2, b""), Errno::Invalid),
        (&export(), ALL, a_request(command::READ, 0, 0, 0, b""), Errno::Invalid),
        (&export(), ALL, a_request(command::READ, 0, 0, over, b""), Errno::Invalid),
        (&export(), ALL, a_request(command::WRITE, 0, 0, over, &vec![0; over as usize]), Errno::Invalid),
        (&export(), ALL, a_request(command::WRITE, flag::REQ_ONE, 0, 4, b"abcd"), Errno::Invalid),
        (&export(), OLD, a_request(command::READ, flag::DF, 0, 4, b""), Errno::Invalid),
        (&export(), OLD, a_request(command::BLOCK_STATUS, 0, 0, 4, b""), Errno::Invalid),
        (&export(), ALL, a_request(command::FLUSH, 0, 0, 4, b""), Errno::Invalid),
        (&export(), ALL, a_request(99, 0, 0, 4, b""), Errno::Invalid),
    ];
    for (nth, (info, terms, bytes, error)) in cases.into_iter().enumerate() {
        let follower = a_request(command::CACHE, 0, 0, 8, b"");
        let (next, out) = first(info, terms, &[bytes, follower].concat());
        assert_eq!(error_of(&out), error as u32, "case {nth}");
        assert!(
            matches!(next, transmission::Next::Do(Request { command: Command::Cache { .. }, .. })),
            "{nth}"
        );
    }
}

#[test]
fn requests_under_way_are_bounded_in_number_and_in_bytes() {
    let big = ExportInfo { size_bytes: 1 << 40, ..export() };
    for (len, limit) in
        [(1, REQUESTS_MAX), (PAYLOAD_MAX_BYTES, (REQUESTS_MAX_BYTES / u64::from(PAYLOAD_MAX_BYTES)) as usize)]
    {
        let mut received = BytesMut::new();
        (0..=limit).for_each(|_| received.put_slice(&a_request(command::READ, 0, 0, len, b"")));
        let mut transmission = Transmission::new(&big, ALL);
        let mut out = BytesMut::new();
        for _ in 0..limit {
            let next = next(&mut transmission, &mut received, &mut out).expect("a request");
            assert!(matches!(next, transmission::Next::Do(_)), "{len}: {next:?}");
        }
        assert_eq!(next(&mut transmission, &mut received, &mut out), Ok(transmission::Next::Full));
        transmission.done(u64::from(len));
        assert!(matches!(next(&mut transmission, &mut received, &mut out), Ok(transmission::Next::Do(_))));
    }
}

#[test]
fn a_server_that_stops_refuses_what_comes_after() {
    let mut transmission = Transmission::new(&export(), ALL);
    transmission.stop();
    let mut received = BytesMut::from(&a_request(command::WRITE, 0, 0, 4, b"abcd")[..]);
    let mut out = BytesMut::new();
    assert!(matches!(next(&mut transmission, &mut received, &mut out), Ok(transmission::Next::Read(_))));
    assert_eq!(error_of(&out), Errno::Shutdown as u32);
}

#[test]
fn a_disconnect_ends_and_senseless_bytes_fail() {
    let (ended, _) = first(&export(), ALL, &a_request(command::DISC, 0, 0, 0, b""));
    assert_eq!(ended, transmission::Next::End);
    let mut received = BytesMut::from(&[0x42; 28][..]);
    let failed = next(&mut Transmission::new(&export(), ALL), &mut received, &mut BytesMut::new());
    assert!(matches!(failed, Err(ProtocolError::Magic { found: 0x4242_4242, .. })), "{failed:?}");
}

#[test]
fn random_bytes_end_in_an_error_or_wait_for_more() {
    let mut numbers = Numbers(1);
    for _ in 0..2000 {
        let len = numbers.next() as usize % 200;
        let senseless = numbers.bytes(len);
        // Behind a good beginning they reach further in.
        for begin in [vec![], flags(3), [flags(3), OPTION_MAGIC.to_be_bytes().to_vec()].concat()] {
            let (_, end) = talk(&[begin, senseless.clone()].concat(), 64);
            assert!(!matches!(end, End::Serves(_)), "{senseless:?}");
        }
        for kind in [option::GO, option::SET_META_CONTEXT, option::LIST_META_CONTEXT, option::EXPORT_NAME] {
            let structured = an_option(option::STRUCTURED_REPLY, b"");
            talk(&[flags(3), structured, an_option(kind, &senseless)].concat(), 64);
        }
        let mut received = BytesMut::from(&[&REQUEST_MAGIC.to_be_bytes()[..], &senseless].concat()[..]);
        let mut transmission = Transmission::new(&export(), ALL);
        let mut out = BytesMut::new();
        while let Ok(transmission::Next::Do(request)) = next(&mut transmission, &mut received, &mut out) {
            transmission.done(request.cost_bytes);
        }
    }
}

#[test]
fn a_structured_read_tells_holes_from_data_and_a_simple_one_sends_zeros() {
    let parts = [Part::Data(Bytes::from_static(b"ab")), Part::Hole(3), Part::Data(Bytes::from_static(b"c"))];
    let mut out = BytesMut::new();
    Replies { structured: true }.read(&mut out, 9, 4096, &parts, false);
    let mut expected = BytesMut::new();
    let mut head = |flags: u16, kind: u16, len: u32, at: u64, payload: &[u8]| {
        expected.put_u32(0x668e_33ef);
        expected.put_u16(flags);
        expected.put_u16(kind);
        expected.put_u64(9);
        expected.put_u32(len);
        expected.put_u64(at);
        expected.put_slice(payload);
    };
    head(0, 1, 10, 4096, b"ab");
    head(0, 2, 12, 4098, &3_u32.to_be_bytes());
    head(1, 1, 9, 4101, b"c");
    assert_eq!(out, expected);
    out.clear();
    Replies { structured: true }.read(&mut out, 9, 4096, &parts, true);
    assert_eq!(out[4..20], [&[0, 1, 0, 1][..], &9_u64.to_be_bytes(), &14_u32.to_be_bytes()].concat());
    assert_eq!(out[28..], *b"ab\0\0\0c");
    out.clear();
    Replies { structured: false }.read(&mut out, 9, 4096, &parts, false);
    assert_eq!(out[..16], [&0x6744_6698_u32.to_be_bytes()[..], &[0; 4], &9_u64.to_be_bytes()].concat());
    assert_eq!(out[16..], *b"ab\0\0\0c");
}

#[test]
fn a_request_without_room_waits_and_begins_when_it_has_some() {
    let bytes = [a_request(command::FLUSH, 0, 0, 0, b""), a_request(command::WRITE, 0, 0, 4, b"ab")].concat();
    let (mut received, mut out) = (BytesMut::from(&bytes[..]), BytesMut::new());
    let mut transmission = Transmission::new(&export(), ALL);
    let full = |_| false;
    let next = transmission.next(&mut received, &mut out, full);
    assert!(matches!(next, Ok(transmission::Next::Do(_))), "a flush needs none: {next:?}");
    for _ in 0..2 {
        assert_eq!(transmission.next(&mut received, &mut out, full), Ok(transmission::Next::Room(4)));
    }
    transmission.give_room();
    assert_eq!(transmission.next(&mut received, &mut out, full), Ok(transmission::Next::Read(2)));
    received.put_slice(b"cd");
    let next = transmission.next(&mut received, &mut out, full);
    assert!(matches!(next, Ok(transmission::Next::Do(Request { cost_bytes: 4, .. }))), "{next:?}");
    received.put_slice(&a_request(command::READ, 0, 0, 8, b""));
    assert_eq!(
        transmission.next(&mut received, &mut out, full),
        Ok(transmission::Next::Room(8)),
        "each its own"
    );
}
