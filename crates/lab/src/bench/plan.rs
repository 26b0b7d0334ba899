//! Which benches there are, whom each is measured against, and what it must reach.

use super::side::MakeSide;
use crate::bare::Work;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A token from the sequencer.
    Token,
    /// A durable append.
    Append,
    /// A read of a recent entry, from memory.
    Read,
    /// A read of an entry at random, from the drive.
    ReadCold,
    /// An entry of the whole log read in order, from the drive.
    Replay,
    /// The value of a key of a map, linearizable.
    Get,
    /// The values of several keys of a map in one call, linearizable.
    MultiGet,
    /// The value of a key of a map as of a position.
    Snapshot,
}

/// One bench.
#[derive(Debug)]
pub struct Bench {
    /// Its name on the command line and in `results/`.
    pub name: &'static str,
    /// What is done.
    pub operation: Operation,
    /// Bytes of an entry; 0 for tokens.
    pub size: usize,
    /// Connections.
    pub clients: usize,
    /// Operations in flight, over all connections.
    pub inflight: usize,
    /// Programs that have the connections between them: more than one where a program does so much itself that one, which has one thread, would
    /// leave the server idle. As many threads of the baselines' client.
    pub programs: usize,
    /// Who does it.
    pub sides: &'static [MakeSide],
    /// What the system must reach.
    pub targets: &'static [Target],
}

/// What a bench must reach.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// The rate, as a ratio to the slowest of these sides, at least.
    Rate(&'static [MakeSide], f64),
    /// The rate itself, operations a second, at least.
    AbsoluteRate(f64),
    /// The median latency, as a ratio to this side's, at most.
    Median(MakeSide, f64),
    /// CPU of clients and servers for each operation in microseconds, at most.
    Cpu(f64),
}

use MakeSide::{Bare, Drive, Echo, Etcd, Ithaca, Memory, NewIthaca, Redis};
use Target::{AbsoluteRate, Cpu, Median, Rate};

/// Every bench.
pub const BENCHES: &[Bench] = &[
    Bench {
        name: "token",
        operation: Operation::Token,
        size: 0,
        clients: 16,
        inflight: 1024,
        programs: 1,
        sides: &[Bare, Ithaca, Redis],
        targets: &[Rate(&[Bare], 0.5), Rate(&[Redis], 3.0), Cpu(0.3)],
    },
    Bench {
        name: "token-alone",
        operation: Operation::Token,
        size: 0,
        clients: 1,
        inflight: 1,
        programs: 1,
        sides: &[Echo, Bare, Ithaca],
        targets: &[Median(Echo, 1.2)],
    },
    Bench {
        name: "append-128",
        operation: Operation::Append,
        size: 128,
        clients: 16,
        inflight: 256,
        programs: 1,
        sides: &[Bare, Ithaca, NewIthaca, Redis],
        targets: &[Rate(&[Bare], 0.55), Rate(&[Redis], 6.0), Cpu(4.0)],
    },
    Bench {
        name: "append-512",
        operation: Operation::Append,
        size: 512,
        clients: 16,
        inflight: 256,
        programs: 1,
        sides: &[Bare, Ithaca, NewIthaca, Redis],
        targets: &[Rate(&[Bare], 0.55), Rate(&[Redis], 6.0), Cpu(4.0)],
    },
    Bench {
        name: "append-4k",
        operation: Operation::Append,
        size: 4096,
        clients: 16,
        inflight: 256,
        programs: 1,
        sides: &[Bare, Ithaca, NewIthaca, Drive],
        targets: &[Rate(&[Bare, Drive], 0.7)],
    },
    Bench {
        name: "append-4k-alone",
        operation: Operation::Append,
        size: 4096,
        clients: 1,
        inflight: 1,
        programs: 1,
        sides: &[Bare, Ithaca],
        targets: &[Median(Bare, 1.3)],
    },
    Bench {
        name: "read-4k",
        operation: Operation::Read,
        size: 4096,
        clients: 16,
        inflight: 256,
        programs: 1,
        sides: &[Bare, Ithaca],
        targets: &[Rate(&[Bare], 0.8)],
    },
    Bench {
        name: "read-4k-cold",
        operation: Operation::ReadCold,
        size: 4096,
        clients: 4,
        inflight: 32,
        programs: 1,
        sides: &[Drive, Ithaca],
        targets: &[Rate(&[Drive], 0.85)],
    },
    Bench {
        name: "replay-128",
        operation: Operation::Replay,
        size: 128,
        clients: 1,
        inflight: 1,
        programs: 1,
        sides: &[Ithaca],
        targets: &[AbsoluteRate(1_000_000.0)],
    },
    Bench {
        name: "map-get",
        operation: Operation::Get,
        size: 128,
        clients: 16,
        inflight: 1024,
        programs: 2,
        sides: &[Bare, Ithaca, Etcd],
        targets: &[Rate(&[Bare], 0.7), Rate(&[Etcd], 10.0)],
    },
    Bench {
        name: "map-multi-get",
        operation: Operation::MultiGet,
        size: 128,
        clients: 16,
        inflight: 1024,
        programs: 2,
        sides: &[Bare, Ithaca],
        targets: &[Rate(&[Bare], 0.7)],
    },
    Bench {
        name: "map-snapshot",
        operation: Operation::Snapshot,
        size: 128,
        clients: 1,
        inflight: 1,
        programs: 1,
        sides: &[Memory, Ithaca],
        targets: &[Rate(&[Memory], 0.5)],
    },
];

impl Bench {
    /// Operations that each connection has in flight.
    pub fn batch(&self) -> usize {
        self.inflight / self.clients
    }

    /// The sides to start: all, or the baselines that need nothing but this program.
    pub fn sides(&self, bare_only: bool) -> impl Iterator<Item = MakeSide> {
        self.sides
            .iter()
            .copied()
            .filter(move |side| !bare_only || !matches!(side, Ithaca | NewIthaca | Redis | Etcd))
    }

    /// What the bare client does for it.
    pub fn bare_work(&self) -> Work {
        match self.operation {
            Operation::Token => Work::Token,
            Operation::Append => Work::Append { size: self.size },
            Operation::Read | Operation::ReadCold | Operation::Replay => Work::Read { size: self.size },
            Operation::Get | Operation::MultiGet | Operation::Snapshot => Work::RoundTrip,
        }
    }

    /// When an operation counts as done.
    pub fn durability(&self) -> &'static str {
        match self.operation {
            Operation::Append => {
                "every acknowledged entry on stable storage (O_DIRECT and O_DSYNC writes; Redis: appendfsync always); the files of all but ithaca-new and Redis were written over before"
            }
            Operation::Token => "none needed: tokens are not stored",
            Operation::Get => {
                "linearizable reads: bare's is a question to a counter in a message of its own, answered and verified; etcd's is a Range over gRPC"
            }
            Operation::MultiGet => {
                "linearizable reads, 64 keys of a map in one call; bare's is a question to a counter in a message of its own, answered and verified"
            }
            Operation::Snapshot => "reads of a copy of an old state, made before: nobody is asked",
            Operation::Read | Operation::ReadCold | Operation::Replay => "none needed: reads",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_names_a_side_that_is_measured() {
        for bench in BENCHES {
            assert_eq!(bench.batch() * bench.clients, bench.inflight, "{}", bench.name);
            assert_eq!(bench.clients % bench.programs, 0, "{}", bench.name);
            for target in bench.targets {
                let against: &[MakeSide] = match target {
                    Rate(sides, _) => sides,
                    Median(side, _) => &[*side],
                    Cpu(_) | AbsoluteRate(_) => &[],
                };
                assert!(against.iter().all(|side| bench.sides.contains(side)), "{}: {target:?}", bench.name);
            }
        }
    }
}
