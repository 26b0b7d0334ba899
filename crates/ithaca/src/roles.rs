//! What a server is to do: the roles that its settings name.

use clap::ValueEnum;
use ithaca_log::wire::Roles;

use crate::cli::{Role, ServeArgs};
use crate::failure::Failure;

/// The roles that settings name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// What its cluster may give it to do.
    pub offers: Roles,
    /// Whether it keeps views of objects.
    pub views: bool,
    /// Whether it serves pages.
    pub http: bool,
}

impl Named {
    /// The roles that these settings name. Refuses what cannot be: none, one that is named twice, and a cluster in one process that leaves out
    /// what a cluster needs.
    pub fn of(arguments: &ServeArgs) -> Result<Self, Failure> {
        let mut named = Self { offers: Roles::default(), views: false, http: false };
        for (at, role) in arguments.roles.iter().enumerate() {
            if arguments.roles[..at].contains(role) {
                return Err(Failure::usage(format!("--roles: {} is named twice", name(*role))));
            }
            match role {
                Role::Layout => named.offers = named.offers.with(Roles::LAYOUT),
                Role::Sequencer => named.offers = named.offers.with(Roles::SEQUENCER),
                Role::Unit => named.offers = named.offers.with(Roles::UNIT),
                Role::Views => named.views = true,
                Role::Http => named.http = true,
            }
        }
        let missing = Roles::OFFERED.without(named.offers);
        if arguments.roles.is_empty() {
            return Err(Failure::usage("--roles: no role is named"));
        }
        if arguments.node == 0 && missing != Roles::default() {
            return Err(Failure::usage(format!(
                "--roles: {missing} is left out, and a cluster of its own needs {}; only a node of several servers (--node) may leave it out",
                Roles::OFFERED
            )));
        }
        Ok(named)
    }
}

fn name(role: Role) -> String {
    role.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
