//! What `#[object]` makes of a block of methods.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};
use syn::{Error, ImplItem, ItemImpl, ReturnType, Type};

use crate::method::{Method, Role};

/// The block itself, the object, its mutators and its handle.
pub fn expand(attributes: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    if !attributes.is_empty() {
        return Err(Error::new(Span::call_site(), "`#[object]` takes no arguments"));
    }
    let block: ItemImpl = syn::parse2(item)
        .map_err(|error| Error::new(error.span(), "`#[object]` stands before an `impl` block of a struct"))?;
    let state = state_of(&block)?;
    let (mut plain, mut methods) = (Vec::new(), Vec::new());
    for item in &block.items {
        match item {
            ImplItem::Fn(function) => match Method::of(function.clone())? {
                Ok(method) => methods.push(method),
                Err(function) => plain.push(ImplItem::Fn(function)),
            },
            other => plain.push(other.clone()),
        }
    }
    if !methods.iter().any(|method| matches!(method.role, Role::Mutator | Role::AccessorMutator)) {
        return Err(Error::new(
            state.span(),
            "an object that nothing changes needs no log: mark a `#[mutator]`",
        ));
    }
    let handle = format_ident!("{state}Handle");
    let own = own_methods(&state, &plain, &methods);
    let object = object(&state, &methods);
    let mutators = methods.iter().filter(|method| is_mutator(method)).map(|method| mutator(&state, method));
    let handle = handle_of(&state, &handle, &methods);
    Ok(quote! { #own #object #(#mutators)* #handle })
}

fn state_of(block: &ItemImpl) -> syn::Result<Ident> {
    let wrong = |what: &str| Error::new(Span::call_site(), what);
    if block.trait_.is_some() || !block.generics.params.is_empty() {
        return Err(wrong("`#[object]` stands before methods of a struct without parameters, of no trait"));
    }
    match &*block.self_ty {
        Type::Path(path) => {
            path.path.get_ident().cloned().ok_or_else(|| wrong("the struct is named by one word"))
        }
        _ => Err(wrong("`#[object]` stands before methods of a struct")),
    }
}

fn is_mutator(method: &Method) -> bool {
    matches!(method.role, Role::Mutator | Role::AccessorMutator)
}

/// The methods as they were written.
fn own_methods(state: &Ident, plain: &[ImplItem], methods: &[Method]) -> TokenStream {
    let marked =
        methods.iter().filter(|method| method.role != Role::Transactional).map(|method| &method.item);
    quote! { impl #state { #(#plain)* #(#marked)* } }
}

/// The name of the struct that holds a mutator's arguments.
fn call_name(state: &Ident, method: &Method) -> Ident {
    let words = method.item.sig.ident.to_string();
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
            .unwrap_or_default()
    };
    let name: String = words.split('_').map(capital).collect();
    format_ident!("{state}{name}")
}

fn object(state: &Ident, methods: &[Method]) -> TokenStream {
    let name = state.to_string();
    let calls = methods.iter().filter(|method| is_mutator(method)).map(|method| call_name(state, method));
    quote! {
        impl ::ithaca_object::object::Object for #state {
            const TYPE: &'static str = #name;
            const METHODS: &'static [::ithaca_object::object::Method<Self>] =
                &[#(::ithaca_object::object::Method::of::<#calls>()),*];
            /// The state before: what is exchanged is all of it.
            type Undo = Self;

            fn exchange(&mut self, undo: &mut Self) {
                ::std::mem::swap(self, undo);
            }
        }
    }
}

fn output_of(method: &Method) -> TokenStream {
    match &method.item.sig.output {
        ReturnType::Default => quote! { () },
        ReturnType::Type(_, output) => quote! { #output },
    }
}

fn mutator(state: &Ident, method: &Method) -> TokenStream {
    let (call, function) = (call_name(state, method), &method.item.sig.ident);
    let (name, output) = (function.to_string(), output_of(method));
    let fields: Vec<&Ident> = method.parameters.iter().map(|(name, _)| name).collect();
    let types = method.parameters.iter().map(|(_, of)| of);
    let docs = format!("A call of `{state}::{function}`, as records hold it.");
    let field_docs = fields.iter().map(|field| format!("The argument `{field}`."));
    let keys = match &method.key {
        Some(key) => quote! {
            ::ithaca_object::key::Keys::updates(::ithaca_object::key::Key::of(&self.#key))
        },
        None => quote! { ::ithaca_object::key::Keys::whole() },
    };
    quote! {
        #[doc = #docs]
        #[derive(::ithaca_object::serde::Serialize, ::ithaca_object::serde::Deserialize)]
        #[serde(crate = "::ithaca_object::serde")]
        pub struct #call { #(#[doc = #field_docs] pub #fields: #types),* }

        impl ::ithaca_object::object::Mutator<#state> for #call {
            const NAME: &'static str = #name;
            type Output = #output;

            fn keys(&self) -> ::ithaca_object::key::Keys {
                #keys
            }

            fn apply(
                self,
                object: &mut #state,
                _: ::ithaca_object::LogPos,
                undo: &mut ::std::vec::Vec<#state>,
            ) -> #output {
                undo.push(::std::clone::Clone::clone(object));
                object.#function(#(self.#fields),*)
            }
        }
    }
}

fn handle_of(state: &Ident, handle: &Ident, methods: &[Method]) -> TokenStream {
    let docs = format!("An open [`{state}`]: its methods, now, as of a position, or in a transaction.");
    let methods = methods.iter().map(|method| handle_method(state, handle, method));
    quote! {
        #[doc = #docs]
        #[derive(Clone)]
        pub struct #handle {
            handle: ::ithaca_object::Handle<#state>,
        }

        impl #handle {
            /// Opens the one of this name; it is the default one if nobody has changed it.
            pub fn open(
                runtime: &::ithaca_object::Runtime,
                name: &str,
            ) -> ::std::result::Result<Self, ::ithaca_object::ObjectError> {
                ::std::result::Result::Ok(Self { handle: runtime.open(name)? })
            }

            /// The same object in a transaction.
            pub fn within(&self, tx: &::ithaca_object::Tx) -> Self {
                Self { handle: self.handle.within(tx) }
            }

            /// The same object as it was when it reflected every position of the log below `snapshot`.
            pub fn at(&self, snapshot: ::ithaca_object::LogPos) -> Self {
                Self { handle: self.handle.at(snapshot) }
            }

            #(#methods)*
        }
    }
}

fn handle_method(state: &Ident, handle: &Ident, method: &Method) -> TokenStream {
    let signature = &method.item.sig;
    let (visibility, function, output) = (&method.item.vis, &signature.ident, output_of(method));
    let docs = method.item.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let fields: Vec<&Ident> = method.parameters.iter().map(|(name, _)| name).collect();
    let types: Vec<&Type> = method.parameters.iter().map(|(_, of)| of).collect();
    let failed = quote! { ::ithaca_object::ObjectError };
    let (body, output) = match method.role {
        Role::Accessor => {
            let key = method.key.as_ref().map_or_else(
                || quote! { ::ithaca_object::key::Key::all() },
                |key| quote! { ::ithaca_object::key::Key::of(&#key) },
            );
            let body = quote! {
                let keys = ::std::vec![#key];
                self.handle.read(|| keys, |object| object.#function(#(#fields),*)).await
            };
            (body, quote! { ::std::result::Result<#output, #failed> })
        }
        Role::Mutator => {
            let call = call_name(state, method);
            let body = quote! { self.handle.send(#call { #(#fields),* }).await.map(|_| ()) };
            (body, quote! { ::std::result::Result<(), #failed> })
        }
        Role::AccessorMutator => {
            let call = call_name(state, method);
            let body = quote! { self.handle.call(#call { #(#fields),* }).await };
            (body, quote! { ::std::result::Result<#output, #failed> })
        }
        Role::Transactional => {
            let item =
                syn::ImplItemFn { attrs: Vec::new(), vis: syn::Visibility::Inherited, ..method.item.clone() };
            let body = quote! {
                #item
                let body = async |tx: &::ithaca_object::Tx| {
                    let this: #handle = self.within(tx);
                    #function(&this, tx, #(::std::clone::Clone::clone(&#fields)),*).await
                };
                self.handle.transact(body).await
            };
            (body, output)
        }
    };
    quote! {
        #(#docs)*
        #visibility async fn #function(&self, #(#fields: #types),*) -> #output { #body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(block: &str) -> String {
        let block = block.parse().expect("tokens");
        expand(TokenStream::new(), block).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_block_of_marked_methods_is_taken() {
        let block = "impl User {
            #[accessor] fn name(&self) -> String { self.name.clone() }
            #[mutator(key = name)] fn rename(&mut self, name: String) { self.name = name; }
            #[accessor_mutator] fn bump(&mut self) -> u64 { self.n += 1; self.n }
            #[transactional] async fn swap(this: &UserHandle, tx: &Tx, to: UserHandle) -> Result<(), E> { Ok(()) }
            fn helper(&self) {}
        }";
        assert_eq!(told(block), "");
        let tokens = expand(TokenStream::new(), block.parse().expect("tokens")).expect("taken").to_string();
        for part in
            ["struct UserHandle", "struct UserRename", "struct UserBump", "async fn swap (& self , to"]
        {
            assert!(tokens.contains(part), "{part} in {tokens}");
        }
        syn::parse_str::<syn::File>(&tokens).expect("it is Rust");
    }

    #[test]
    fn what_cannot_be_an_object_is_told_in_words() {
        for (block, part) in [
            ("struct One;", "before an `impl` block"),
            ("impl One {}", "nothing changes"),
            ("impl Trait for One {}", "of no trait"),
            ("impl<T> One<T> {}", "without parameters"),
            ("impl One { #[mutator] fn change(&self) {} }", "takes `&mut self`"),
            ("impl One { #[mutator] fn change(self) {} }", "takes `&mut self`"),
            ("impl One { #[accessor] fn read(&mut self) -> u64 { 7 } }", "takes `&self`"),
            ("impl One { #[accessor] fn read(&self) {} }", "gives nothing back"),
            ("impl One { #[mutator] fn change(&mut self) -> u64 { 7 } }", "mark it `accessor_mutator`"),
            ("impl One { #[accessor_mutator] fn change(&mut self) {} }", "mark it `mutator`"),
            ("impl One { #[mutator] async fn change(&mut self) {} }", "not `async`"),
            ("impl One { #[mutator] fn change<T>(&mut self, t: T) {} }", "no generic parameters"),
            (
                "impl One { #[mutator(key = name)] fn change(&mut self, amount: u64) {} }",
                "`name` is no parameter",
            ),
            ("impl One { #[mutator(lock = name)] fn change(&mut self) {} }", "only `key = parameter`"),
            ("impl One { #[mutator] #[accessor] fn change(&mut self) {} }", "marked once"),
            ("impl One { #[mutator] fn change(&mut self, (a, b): (u8, u8)) {} }", "a name and a type"),
            ("impl One { #[transactional] fn both(this: &OneHandle, tx: &Tx) {} }", "is `async`"),
            ("impl One { #[transactional] async fn both(&self) {} }", "takes a handle"),
        ] {
            let told = told(block);
            assert!(told.contains(part), "{block}: {told}");
        }
    }
}
