//! The attribute `#[object]`, which makes a replicated object of a struct with methods.
//!
//! It is used through `ithaca_object::object_type`, whose documentation says what it makes. Nothing is decided here at run time.

mod expand;
mod method;

use proc_macro::TokenStream;

/// See `ithaca_object::object_type`.
#[proc_macro_attribute]
pub fn object(attributes: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attributes.into(), item.into()).unwrap_or_else(|error| error.to_compile_error()).into()
}
