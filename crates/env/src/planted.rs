//! Faults that are put into the code on purpose, to see that the tests find them.

/// Lists the planted bugs of a crate, each with the rule that it breaks: `PlantedBug`, and the selector `Planted`.
///
/// A fault can be selected only in the crate's own tests and with its feature `planted-bugs`; elsewhere `Planted::is` is a
/// constant `false`, and the faults are compiled out.
#[macro_export]
macro_rules! planted_bugs {
    ($($(#[$rule:meta])* $bug:ident,)*) => {
        /// A fault that is put in on purpose. Each breaks the rule that its description names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PlantedBug {
            $($(#[$rule])* $bug,)*
        }

        impl PlantedBug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug),*];
        }

        /// Which fault is in force, if any.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct Planted {
            #[cfg(any(test, feature = "planted-bugs"))]
            bug: Option<PlantedBug>,
        }

        impl Planted {
            /// No fault.
            pub const NONE: Self = Self {
                #[cfg(any(test, feature = "planted-bugs"))]
                bug: None,
            };

            /// This fault.
            #[cfg(any(test, feature = "planted-bugs"))]
            pub const fn bug(bug: PlantedBug) -> Self {
                Self { bug: Some(bug) }
            }

            /// Whether it is in force.
            #[cfg(any(test, feature = "planted-bugs"))]
            pub(crate) fn is(self, bug: PlantedBug) -> bool {
                self.bug == Some(bug)
            }

            /// Whether it is in force: never, here.
            #[cfg(not(any(test, feature = "planted-bugs")))]
            pub(crate) const fn is(self, _bug: PlantedBug) -> bool {
                false
            }
        }
    };
}
