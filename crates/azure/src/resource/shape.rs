//! What the table knows about a place in a body: whether it is ours to set, and how its values compare. Pure.

use super::{
    structs::{Field, Form, Struct},
    table::{Mapping, Table},
};

/// One place in a body.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A struct as a whole.
    Whole(usize),
    /// What stands below a member of a struct's body that its fields are flattened from, as `properties`.
    Below(usize, &'static str),
    Of(&'static Form, bool),
    Unknown,
}

impl Shape {
    /// The body of a request.
    pub fn spec(mapping: &Mapping) -> Self {
        Self::Whole(mapping.spec)
    }

    /// The body of an answer.
    pub fn status(mapping: &Mapping) -> Self {
        Self::Whole(mapping.status)
    }

    fn structure(index: usize) -> &'static Struct {
        Table::get().structure(index)
    }

    fn member(index: usize, below: Option<&str>, key: &str) -> Self {
        Self::structure(index)
            .fields
            .iter()
            .find(|field| field.below.as_deref() == below && field.target.eq_ignore_ascii_case(key))
            .map_or(Self::Unknown, |field| Self::Of(&field.form, field.explicit_empty))
    }

    /// The place below a struct, whichever of its members is set.
    fn of_union(structure: &'static Struct, key: &str) -> Self {
        let place = |field: &'static Field| Self::Of(&field.form, false).child(key);
        let mut places = structure.fields.iter().map(place);
        places.find(|place| place.is_known()).unwrap_or(Self::Unknown)
    }

    /// The place below, by its name in the body.
    pub fn child(self, key: &str) -> Self {
        let index = match self {
            Self::Whole(index) => index,
            Self::Of(Form::Struct(index), _) => *index,
            Self::Below(index, member) => return Self::member(index, Some(member), key),
            Self::Of(Form::Map(inner), _) => return Self::Of(inner, false),
            _ => return Self::Unknown,
        };
        let structure = Self::structure(index);
        if structure.is_union {
            return Self::of_union(structure, key);
        }
        let mut flattened = structure.fields.iter().filter_map(|field| field.below.as_deref());
        match flattened.find(|below| *below == key) {
            Some(below) => Self::Below(index, below),
            None => Self::member(index, None, key),
        }
    }

    /// An element of a list.
    pub fn element(self) -> Self {
        match self {
            Self::Of(Form::List(inner), _) => Self::Of(inner, false),
            _ => Self::Unknown,
        }
    }

    pub fn is_known(self) -> bool {
        !matches!(self, Self::Unknown)
    }

    pub fn is_enum(self) -> bool {
        matches!(self, Self::Of(Form::Enum(_), _))
    }

    pub fn is_identities(self) -> bool {
        matches!(self, Self::Of(Form::Identities, _))
    }

    /// A map whose keys are the user's (tags, labels), not a struct's members.
    pub fn is_map(self) -> bool {
        matches!(self, Self::Of(Form::Map(_), _))
    }

    pub fn is_explicit_empty(self) -> bool {
        matches!(self, Self::Of(_, true))
    }
}
