//! Collections without an order, for tests of what they do to objects.

#![expect(
    clippy::disallowed_types,
    reason = "users have them in their types, and it is tested that they do no harm"
)]

/// Names and values.
pub(crate) type Map<K, V> = std::collections::HashMap<K, V>;
/// Items.
pub(crate) type Set<T> = std::collections::HashSet<T>;
