//! A chain in readable lines: superblock, segments, groups, runs, footers.

use ithaca_env::drive::Drive;

use super::cache::dump_cache;
use super::metadata::dump_metadata;
use crate::error::OpenError;
use crate::format::{GroupFlags, PageView, Superblock, Trailer};
use crate::metadata::Known;
use crate::options::{ChainOptions, Geometry};
use crate::recover::{
    Frame, ScanTarget, ScannedGroup, read_directory, read_frames, read_lenient, read_superblock, scan_segment,
};

/// How much to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpOptions {
    /// Only this segment.
    pub segment: Option<u32>,
    /// Each group.
    pub groups: bool,
    /// Each run of each group, and of each footer.
    pub runs: bool,
}

/// Gives a line at a time to `line`: what one drive of a chain, a cache drive or a metadata drive holds, well or harmed. Writes nothing. Lines are `what key=value …`,
/// for people; they are not a stable format.
///
/// Errors: the superblock cannot be read, or the drive fails.
pub async fn dump(
    drive: &Drive,
    options: DumpOptions,
    mut line: impl FnMut(String),
) -> Result<(), OpenError> {
    if dump_cache(drive, options.runs, &mut line).await?
        || dump_metadata(drive, options.segment, &mut line).await?
    {
        return Ok(());
    }
    let (superblock, _) = read_superblock(drive).await?;
    let chain = superblock.identity.id;
    let geometry = Geometry::new(superblock.segment_bytes);
    superblock_lines(&superblock, &mut line);
    let membership = &superblock.membership;
    let members = membership.members.iter().chain(membership.earlier.iter().flatten());
    let own = members.clone().find(|member| member.drive == superblock.drive);
    let link = own.map_or(0, |member| member.link);
    let segments = geometry.segments_in(drive.size_bytes());
    let sides = std::slice::from_ref(drive);
    let chain_options = ChainOptions { segment_bytes: superblock.segment_bytes, ..ChainOptions::default() };
    for (segment, frame) in read_frames(drive, link, segments, geometry, chain, &Known::default()).await? {
        if options.segment.is_some_and(|wanted| wanted != segment) {
            continue;
        }
        let lap = match &frame {
            Frame::Blank => {
                line(format!("segment {segment} blank"));
                continue;
            }
            Frame::Ready { lap, .. } => {
                line(format!("segment {segment} ready laps_used={lap}"));
                continue;
            }
            Frame::Body { lap } => {
                line(format!("segment {segment} body lap={lap}"));
                Some(*lap)
            }
            Frame::Open { lap } => {
                let known = lap.map_or("unknown (its header is harmed)".into(), |lap| lap.to_string());
                line(format!("segment {segment} open lap={known}"));
                *lap
            }
            Frame::Closed { trailer, is_header_bad } => {
                line(closed_line(trailer, *is_header_bad));
                Some(trailer.lap)
            }
        };
        if options.groups || options.runs {
            let target = ScanTarget { sides, geometry, chain, segment, lap, options: &chain_options };
            for group in scan_segment(&target).await?.groups {
                dump_group(&group, options.runs, &mut line);
            }
        }
        if let Frame::Closed { trailer, .. } = frame
            && (options.groups || options.runs)
        {
            dump_footer(drive, geometry, &trailer, options.runs, &mut line).await?;
        }
    }
    Ok(())
}

fn superblock_lines(superblock: &Superblock, line: &mut impl FnMut(String)) {
    let Superblock { identity, sequence, segment_bytes, drive, segments, membership, keys } = superblock;
    line(format!(
        "superblock chain={} label={} sequence={sequence} segment_bytes={segment_bytes} keys={keys:?} drive={drive} segments={segments}",
        identity.id, identity.label
    ));
    let state = if membership.earlier.is_some() { " pending" } else { "" };
    line(format!("  generation {}{state}", membership.generation));
    for (what, members) in
        [("drive", &membership.members), ("earlier drive", &membership.earlier.clone().unwrap_or_default())]
    {
        members.iter().for_each(|member| {
            let stale = if member.is_live() { "" } else { " stale" };
            line(format!("  {what} {} link={}{stale}", member.drive, member.link));
        });
    }
}

fn closed_line(trailer: &Trailer, is_header_bad: bool) -> String {
    let keys = trailer.keys.as_ref().map_or("in the directory".to_owned(), |keys| format!("{keys:?}"));
    let header = if is_header_bad { " header=harmed" } else { "" };
    format!(
        "segment {} closed{} lap={} seqs={}..={} incarnation={} runs={} records={} data_bytes={} holes={} lost_below={} keys={keys}{header}",
        trailer.segment,
        if trailer.is_body { " body" } else { "" },
        trailer.lap,
        trailer.first_seq,
        trailer.last_seq,
        trailer.incarnation,
        trailer.run_count,
        trailer.record_count,
        trailer.data_bytes,
        trailer.hole_count,
        trailer.lost_below,
    )
}

fn dump_group(group: &ScannedGroup, runs: bool, line: &mut impl FnMut(String)) {
    let (identity, layout) = (&group.head.identity, &group.head.layout);
    let names = [
        (GroupFlags::CHECKPOINT, " checkpoint"),
        (GroupFlags::OPENED, " opened"),
        (GroupFlags::CLOSED, " closed"),
        (GroupFlags::BODY, " body"),
    ];
    let flags: String =
        names.iter().filter(|(flag, _)| identity.flags.has(*flag)).map(|(_, name)| *name).collect();
    line(format!(
        "  group seq={} offset={} bytes={} durable_seq={} incarnation={} key_end={} runs={} released={:?} census={} state_bytes={}{flags}{}",
        identity.seq,
        identity.offset,
        layout.total_bytes(),
        identity.durable_seq,
        identity.incarnation,
        identity.key_end,
        group.area.runs.len(),
        group.area.released,
        group.area.census.as_ref().map_or("none".into(), |census| format!("{census:?}")),
        group.area.state.as_ref().map_or("none".into(), |state| state.len().to_string()),
        if group.bad.is_empty() { String::new() } else { format!(" HARMED keys={:?}", group.bad) },
    ));
    if !runs {
        return;
    }
    for run in &group.area.runs {
        line(format!(
            "    run keys={:?} version={} {:?} data={}+{}{} meta={:?}",
            run.keys(),
            run.version,
            run.kind,
            run.data_offset,
            run.data_bytes,
            if run.aligned { " aligned" } else { "" },
            run.meta,
        ));
    }
}

async fn dump_footer(
    drive: &Drive,
    geometry: Geometry,
    trailer: &Trailer,
    runs: bool,
    line: &mut impl FnMut(String),
) -> Result<(), OpenError> {
    let Some(directory) = read_directory(std::slice::from_ref(drive), geometry, trailer).await? else {
        line(format!("  footer directory offset={} HARMED", trailer.directory_offset));
        return Ok(());
    };
    line(format!(
        "  footer directory offset={} pages={} holes={:?}",
        trailer.directory_offset,
        directory.pages.len(),
        directory.holes
    ));
    for page in &directory.pages {
        let offset = geometry.segment_start(trailer.segment) + u64::from(page.offset);
        let is_inside = u64::from(page.offset) + u64::from(page.bytes) <= geometry.segment_bytes;
        let bytes = if is_inside {
            read_lenient(drive, offset, page.bytes as usize).await?
        } else {
            bytes::Bytes::new()
        };
        let view = PageView::decode(&bytes, trailer.segment, trailer.lap);
        let state = view.as_ref().map_or("HARMED".to_owned(), |view| format!("runs={}", view.run_count()));
        line(format!(
            "  footer page offset={} bytes={} keys={:?} {state}",
            page.offset, page.bytes, page.keys
        ));
        if let Ok(view) = view.as_ref()
            && runs
        {
            (0..view.run_count()).filter_map(|index| view.keys(index)).for_each(|keys| {
                line(format!("    run keys={keys:?}"));
            });
        }
    }
    Ok(())
}
