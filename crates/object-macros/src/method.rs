//! One method of an object: what it is marked as, and what it takes.

use syn::spanned::Spanned;
use syn::{Attribute, Error, FnArg, Ident, ImplItemFn, Pat, ReceiverKind, Result, ReturnType, Type};

/// What a method is marked as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It reads the object.
    Accessor,
    /// It changes the object, and its result is not wanted.
    Mutator,
    /// It changes the object and gives something back.
    AccessorMutator,
    /// It calls methods of this and other objects in one transaction.
    Transactional,
}

impl Role {
    fn of(attribute: &Attribute) -> Option<Self> {
        let known = [
            ("accessor", Self::Accessor),
            ("mutator", Self::Mutator),
            ("accessor_mutator", Self::AccessorMutator),
            ("transactional", Self::Transactional),
        ];
        known.into_iter().find(|(name, _)| attribute.path().is_ident(name)).map(|(_, role)| role)
    }

    /// What its first parameter has to be.
    fn receiver(self) -> &'static str {
        match self {
            Self::Accessor => "an accessor takes `&self`",
            Self::Mutator | Self::AccessorMutator => "a mutator takes `&mut self`",
            Self::Transactional => {
                "a transactional method takes a handle, `this: &...`, and a transaction, `tx: &Tx`"
            }
        }
    }
}

/// A method that is marked.
pub struct Method {
    /// What it is.
    pub role: Role,
    /// The parameter that names the part of the object which it is about, if one does.
    pub key: Option<Ident>,
    /// Parameters behind the receiver.
    pub parameters: Vec<(Ident, Type)>,
    /// The method itself, without our marks.
    pub item: ImplItemFn,
}

impl Method {
    /// Takes the marks off a method. `None` if it has none.
    pub fn of(mut item: ImplItemFn) -> Result<std::result::Result<Self, ImplItemFn>> {
        let marks: Vec<Attribute> =
            item.attrs.iter().filter(|mark| Role::of(mark).is_some()).cloned().collect();
        item.attrs.retain(|attribute| Role::of(attribute).is_none());
        let [mark] = marks.as_slice() else {
            return match marks.get(1) {
                None => Ok(Err(item)),
                Some(second) => Err(Error::new(second.span(), "a method is marked once")),
            };
        };
        let role = Role::of(mark).ok_or_else(|| Error::new(mark.span(), "no mark of a method"))?;
        let key = key_of(mark)?;
        check_signature(role, &item)?;
        let parameters = parameters(role, &item)?;
        if let Some(key) = &key
            && !parameters.iter().any(|(name, _)| name == key)
        {
            return Err(Error::new(key.span(), format!("`{key}` is no parameter of `{}`", item.sig.ident)));
        }
        Ok(Ok(Self { role, key, parameters, item }))
    }
}

/// `key = parameter` of a mark.
fn key_of(mark: &Attribute) -> Result<Option<Ident>> {
    if matches!(mark.meta, syn::Meta::Path(_)) {
        return Ok(None);
    }
    let mut key = None;
    mark.parse_nested_meta(|meta| {
        if !meta.path.is_ident("key") {
            return Err(meta.error("only `key = parameter` is known here"));
        }
        key = Some(meta.value()?.parse()?);
        Ok(())
    })?;
    Ok(key)
}

fn check_signature(role: Role, item: &ImplItemFn) -> Result<()> {
    let signature = &item.sig;
    let wrong = |what: &str| Err(Error::new(signature.ident.span(), what));
    if !signature.generics.params.is_empty() {
        return wrong("a method of an object has no generic parameters: its arguments are stored");
    }
    if role == Role::Transactional {
        return if signature.asyncness.is_some() {
            Ok(())
        } else {
            wrong("a transactional method is `async`")
        };
    }
    if signature.asyncness.is_some() {
        return wrong(
            "what reads or changes the object is not `async`: it must do the same wherever it is applied",
        );
    }
    let gives = !matches!(signature.output, ReturnType::Default);
    match role {
        Role::Accessor if !gives => wrong("an accessor that gives nothing back reads nothing"),
        Role::Mutator if gives => wrong("a `mutator` gives nothing back: mark it `accessor_mutator`"),
        Role::AccessorMutator if !gives => wrong("it gives nothing back: mark it `mutator`"),
        _ => Ok(()),
    }
}

fn parameters(role: Role, item: &ImplItemFn) -> Result<Vec<(Ident, Type)>> {
    let mut inputs = item.sig.inputs.iter();
    let wrong = || Error::new(item.sig.ident.span(), role.receiver());
    let skipped = match (role, inputs.next()) {
        (Role::Transactional, Some(FnArg::Typed(_))) => inputs.next().is_some(),
        (Role::Transactional, _) => false,
        (_, Some(FnArg::Receiver(receiver))) => is_receiver(role, receiver),
        _ => false,
    };
    if !skipped {
        return Err(wrong());
    }
    inputs
        .map(|input| match input {
            FnArg::Typed(typed) => match &*typed.pat {
                Pat::Ident(name) if name.subpat.is_none() => Ok((name.ident.clone(), (*typed.ty).clone())),
                other => Err(Error::new(other.span(), "a parameter is a name and a type")),
            },
            other => Err(Error::new(other.span(), role.receiver())),
        })
        .collect()
}

/// Whether a receiver is `&self` or `&mut self`, as the role has it.
fn is_receiver(role: Role, receiver: &syn::Receiver) -> bool {
    match &receiver.kind {
        ReceiverKind::Reference(_, _, mutability) => mutability.is_some() == (role != Role::Accessor),
        _ => false,
    }
}
