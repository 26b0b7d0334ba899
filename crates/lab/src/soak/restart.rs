//! How soon a log of a given size serves again after SIGKILL: from the start of the process to `ready`.

use std::io;
use std::time::Instant;

use bytes::Bytes;
use clap::Args;
use ithaca_env::real;
use ithaca_env::sim::Random;

use super::fill::{clients, fill};
use super::results::Results;
use super::{Ground, parse_size};
use crate::measure::median;

/// Milliseconds to `ready` at the most, in the median.
const READY_MAX_MS: f64 = 1000.0;
/// Clients that fill the log.
const CLIENTS: u32 = 4;
/// Bytes appended before every kill, so that each finds groups in an open segment.
const LAST_BYTES: u64 = 4 << 20;

/// How large a log.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak restart --bytes 512M")]
pub struct RestartArguments {
    /// Bytes of entries in the log.
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    bytes: u64,
    /// Restarts.
    #[arg(long, default_value_t = 5)]
    restarts: u32,
    /// Log units.
    #[arg(long, default_value_t = 1)]
    units: u32,
    /// Size at which a drive begins.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    drive_size: u64,
    #[command(flatten)]
    ground: Ground,
}

/// Fills a log, kills and restarts the cluster, and judges the median.
pub fn run(arguments: &RestartArguments) -> io::Result<(u64, u64)> {
    let (mut site, mut random) = arguments.ground.site("restart", arguments.units, arguments.drive_size)?;
    let mut results = Results::new(
        "time from the start of the process to `ready`, after SIGKILL",
        "restart,log_bytes,tail,ready_ms,first_append_ms",
    );
    let mut ready_ms = Vec::new();
    real::run(async |env| {
        let (mut server, _) = site.start(&env).await?;
        let mut log_bytes = 0;
        for restart in 0..=arguments.restarts {
            let fillers = clients(&env, site.addr(), CLIENTS).await.map_err(io::Error::other)?;
            let bytes = if restart == 0 { arguments.bytes } else { LAST_BYTES };
            let entries = Entries::new(bytes, Random::new(random.next_u64()));
            fill(&env, &fillers, entries.into_next()).await.map_err(io::Error::other)?;
            log_bytes += bytes;
            let tail = fillers[0].check().await.map_err(io::Error::other)?.tail;
            server.kill()?;
            drop(fillers);
            if restart == arguments.restarts {
                break;
            }
            let spawned = Instant::now();
            let ready;
            (server, ready) = site.start(&env).await?;
            let probe = clients(&env, site.addr(), 1).await.map_err(io::Error::other)?;
            let found = probe[0].check().await.map_err(io::Error::other)?.tail;
            if found < tail {
                return Err(io::Error::other(format!("the log ends at {found}, and ended at {tail} before")));
            }
            probe[0].append(Bytes::from_static(b"probe")).await.map_err(io::Error::other)?;
            let (ready, first) = (ready.as_secs_f64() * 1000.0, spawned.elapsed().as_secs_f64() * 1000.0);
            println!(
                "restart {}: {log_bytes} bytes, tail {tail}: ready in {ready:.0} ms, first append {first:.0} ms",
                restart + 1
            );
            results.row(&format!("{},{log_bytes},{tail},{ready:.1},{first:.1}", restart + 1));
            ready_ms.push(ready);
        }
        io::Result::Ok(())
    })?;
    let (p50, max) = (median(ready_ms.iter().copied()), ready_ms.iter().copied().fold(0.0, f64::max));
    let is_met = p50 < READY_MAX_MS;
    let summary = format!(
        "{{\"log_bytes\":{},\"restarts\":{},\"ready_ms_p50\":{p50:.0},\"ready_ms_max\":{max:.0},\"limit_ms\":{READY_MAX_MS:.0},\"met\":{is_met}}}",
        arguments.bytes, arguments.restarts,
    );
    println!("{summary}");
    results.remark(&summary);
    results.write(&arguments.ground.results, "restart")?;
    site.remove()?;
    Ok((u64::from(is_met), u64::from(!is_met)))
}

/// Entries of 128 B to 4 KB, of so many bytes together.
struct Entries {
    left: u64,
    random: Random,
    pattern: Bytes,
}

impl Entries {
    const LEN_MIN: u64 = 128;
    const LEN_MAX: u64 = 4096;

    fn new(bytes: u64, mut random: Random) -> Self {
        let words = 2 * Self::LEN_MAX / 8;
        let pattern: Vec<u8> = (0..words).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        Self { left: bytes, random, pattern: pattern.into() }
    }

    fn into_next(mut self) -> impl FnMut() -> Option<Bytes> {
        move || {
            if self.left == 0 {
                return None;
            }
            let len = Self::LEN_MIN + self.random.below(Self::LEN_MAX - Self::LEN_MIN + 1);
            let from = self.random.below(Self::LEN_MAX) as usize;
            self.left = self.left.saturating_sub(len);
            Some(self.pattern.slice(from..from + len as usize))
        }
    }
}
