//! One example of every record, as bytes: what the format was when it was written must be readable for ever.

use bytes::Bytes;
use ithaca_env::real::golden;

use super::{
    CacheHeader, CachedBlock, Directory, EntryHead, Footer, FooterRun, GroupFlags, GroupIdentity,
    GroupSource, Hole, LineHead, MetadataHeader, PageView, SegmentHeader, SegmentKind, SourceRun, Superblock,
    Trailer, encode_group_with, peek_group,
};
use crate::membership::{DriveId, Member, Membership, SideState};
use crate::options::{ChainId, Identity, Label};
use crate::owner::Keys;
use crate::run::{Run, RunKind, Table};

const CHAIN: ChainId = ChainId(*b"0123456789abcdef");

fn runs() -> Vec<Run> {
    let payloads: [&[u8]; 3] = [b"one", b"", b"three"];
    let data = Run {
        first_key: 100,
        version: 5,
        kind: RunKind::Data,
        meta: Bytes::from_static(b"meta"),
        table: Table::of_payloads(payloads),
        data: Bytes::from(payloads.concat()),
    };
    let block = vec![0xab; 4096];
    let aligned = Run {
        first_key: 103,
        meta: Bytes::new(),
        table: Table::of_payloads([&block]),
        data: Bytes::from(block),
        ..data.clone()
    };
    let junk = Run {
        first_key: 104,
        kind: RunKind::Junk,
        table: Table::of_payloads([b"", b""]),
        data: Bytes::new(),
        ..aligned.clone()
    };
    vec![data, aligned, junk]
}

/// Of a chain of two drives, told by the first, while the second is being added.
fn superblock() -> Superblock {
    let label = Label::new("unit-1").expect("short");
    let member = |drive, link| Member { drive: DriveId(drive), link, state: SideState::Live };
    Superblock {
        identity: Identity { id: CHAIN, label },
        sequence: 3,
        segment_bytes: 64 << 20,
        keys: Keys::Versioned,
        drive: DriveId(0x1122_3344_5566_7788),
        segments: 16,
        membership: Membership {
            generation: 2,
            members: vec![member(0x1122_3344_5566_7788, 0), member(0x99aa_bbcc_ddee_ff00, 1)],
            earlier: Some(vec![member(0x1122_3344_5566_7788, 0)]),
        },
    }
}

/// Name and bytes of each record.
fn records() -> Vec<(&'static str, Vec<u8>)> {
    let header = SegmentHeader { chain: CHAIN, segment: 2, kind: SegmentKind::Open, lap: 3 };
    let body = SegmentHeader { kind: SegmentKind::Body, ..header };
    let identity = GroupIdentity {
        flags: GroupFlags::CHECKPOINT.with(GroupFlags::OPENED),
        segment: 2,
        chain: CHAIN,
        lap: 3,
        seq: 7,
        durable_seq: 5,
        incarnation: 4,
        prev_lap: 2,
        offset: 4096,
        segments: 16,
        key_end: 106,
    };
    let runs = runs();
    let state = Bytes::from_static(b"state");
    let source = GroupSource {
        identity,
        released: &[0..50, 60..70],
        state: Some(&state),
        runs: &SourceRun::all(&runs),
    };
    let group = encode_group_with(&source, Some(&vec![0..2, 5..9]));
    let ends = group.starts.iter().skip(1).map(|&end| end as usize).chain([group.blob.len()]);
    let footer_run = |(run, (&start, end)): (&Run, (&u32, usize))| FooterRun {
        keys: (run.keys().start, run.keys().end),
        blob: &group.blob[start as usize..end],
    };
    let footer_runs: Vec<FooterRun<'_>> =
        runs.iter().zip(group.starts.iter().zip(ends)).map(footer_run).collect();
    let holes = vec![Hole { offset: 16384, bytes: 8192, seqs: 9..10 }];
    let keys = vec![std::ops::Range { start: 100, end: 106 }];
    let end = (64 << 20) - 4096;
    let footer = Footer::encode(2, 3, end, footer_runs.iter().copied(), holes, keys.clone());
    let blocks = footer_runs.iter().filter(|run| run.keys.1 - run.keys.0 == 1).copied();
    let packed = Footer::encode(2, 3, end, blocks, Vec::new(), keys.clone());
    let trailer = trailer(&footer, keys);
    let entry = EntryHead {
        id: 0x0807_0605_0403_0201,
        slot: 5,
        drive: DriveId(0x1122_3344_5566_7788),
        footer_bytes: footer.bytes.len() as u32,
        trailer: trailer.clone(),
    };
    vec![
        ("superblock", superblock().encode().to_vec()),
        ("segment header", header.encode().to_vec()),
        ("segment header of copies", body.encode().to_vec()),
        ("group", group.image.joined().to_vec()),
        ("footer page", footer.bytes[..4096].to_vec()),
        ("footer page, packed", packed.bytes[..4096].to_vec()),
        ("footer directory", footer.bytes[4096..].to_vec()),
        ("segment trailer", trailer.encode().to_vec()),
        ("cache header", CacheHeader { session: 0x0102_0304_0506_0708, lines: 9 }.encode().to_vec()),
        ("cache line head", line_head().encode().to_vec()),
        ("metadata header", MetadataHeader { id: entry.id }.encode().to_vec()),
        ("metadata entry", entry.encode().to_vec()),
    ]
}

/// Of the segment with this footer.
fn trailer(footer: &Footer, keys: Vec<std::ops::Range<u64>>) -> Trailer {
    Trailer {
        chain: CHAIN,
        segment: 2,
        lap: 3,
        is_body: false,
        first_seq: 7,
        last_seq: 12,
        incarnation: 4,
        end_offset: 32768,
        directory_offset: footer.directory_offset,
        directory_bytes: footer.directory_bytes,
        directory_checksum: footer.directory_checksum,
        run_count: 3,
        record_count: 6,
        data_bytes: 4104,
        hole_count: 1,
        lost_below: 104,
        segments: 16,
        keys: Some(keys),
    }
}

/// Of a line with two blocks of one segment.
fn line_head() -> LineHead {
    let block = |offset, checksum| CachedBlock { chain: CHAIN, lap: 3, segment: 2, offset, checksum };
    LineHead {
        session: 0x0102_0304_0506_0708,
        line: 4,
        blocks: vec![block(8192, 0x1122_3344), block(12288, 0x5566_7788)],
    }
}

#[test]
fn every_record_is_the_same_bytes_as_ever() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/records.hex");
    let part =
        |(name, bytes): &(&str, Vec<u8>)| format!("# {name}, {} bytes\n{}", bytes.len(), golden::hex(bytes));
    golden::check(path, &records().iter().map(part).collect::<String>());
}

#[test]
fn golden_records_decode() {
    for (name, bytes) in records() {
        let bytes = Bytes::from(bytes);
        let is_good = match name {
            "superblock" => Superblock::decode(&bytes).is_ok(),
            "segment header" | "segment header of copies" => SegmentHeader::decode(&bytes).is_ok(),
            "group" => peek_group(&bytes).is_ok_and(|head| head.decode_area(&bytes).is_ok()),
            "footer page" | "footer page, packed" => PageView::decode(&bytes, 2, 3).is_ok(),
            "footer directory" => Directory::decode(&bytes, 2, 3).is_ok(),
            "cache header" => CacheHeader::decode(&bytes).is_ok(),
            "cache line head" => LineHead::decode(&bytes).is_ok(),
            "metadata header" => MetadataHeader::decode(&bytes).is_ok(),
            "metadata entry" => EntryHead::decode(&bytes, 0x0807_0605_0403_0201, 5).is_ok(),
            _ => Trailer::decode(&bytes).is_ok(),
        };
        assert!(is_good, "{name}");
    }
}
