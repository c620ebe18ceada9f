//! What the table says of fields: their places in the body and what sort of values they hold. Structs are kept packed, kind by
//! kind: a manager meets few of them.

use std::sync::OnceLock;

use flate2::read::DeflateDecoder;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct RawStruct {
    f: Vec<Vec<Value>>,
    p: Option<String>,
    o: Option<u8>,
}

/// What sort of value a field holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    Enum(Vec<String>),
    Struct(usize),
    List(Box<Self>),
    Map(Box<Self>),
    /// `{group, kind, name}` or `{armId}`, sent as an ARM id.
    Reference,
    /// `{name, key}` of a Secret, sent as its value.
    Secret,
    /// `{name}` of a Secret, sent as a map.
    SecretMap,
    /// `{name, key}` of a ConfigMap, sent as its value.
    Config,
    /// A list of `{reference}`, sent as a map from ARM id to `{}`.
    Identities,
    /// A reference, or `{wellKnownName}`, sent as it is.
    WellKnown,
    /// Something that is not in the table.
    ByRule,
}

#[derive(Debug)]
pub(super) struct Field {
    pub name: String,
    /// Its name in the body.
    pub target: String,
    /// The member of the body that it stands below: the struct's `properties`, or another.
    pub below: Option<String>,
    pub form: Form,
    /// Whether an empty collection must be sent to empty it.
    pub explicit_empty: bool,
}

#[derive(Debug)]
pub(super) struct Struct {
    /// By name, in order.
    pub fields: Vec<Field>,
    /// The body's member that holds nested fields.
    pub properties: Option<String>,
    /// Whether its body is that of the one member that is set.
    pub is_union: bool,
}

impl Struct {
    pub fn field(&self, name: &str) -> Option<&Field> {
        let found = self
            .fields
            .binary_search_by(|field| field.name.as_str().cmp(name));
        match found {
            Ok(index) => Some(&self.fields[index]),
            // Some names changed their case from one version of the operator to the next.
            Err(_) => self
                .fields
                .iter()
                .find(|field| field.name.eq_ignore_ascii_case(name)),
        }
    }
}

impl Struct {
    /// Reads a struct; those it names by number come after `first`.
    fn read(raw: RawStruct, first: usize) -> Self {
        let mut fields: Vec<Field> = raw.f.iter().map(|entry| field(entry, &raw, first)).collect();
        fields.sort_by(|left, right| left.name.cmp(&right.name));
        Self {
            fields,
            properties: raw.p,
            is_union: raw.o.is_some(),
        }
    }
}

fn field(entry: &[Value], raw: &RawStruct, first: usize) -> Field {
    let name = entry[0].as_str().unwrap_or_default().to_owned();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (below, target) = match entry.get(1) {
        Some(Value::Array(path)) => (path.first().map(text), path.get(1).map(text).unwrap_or_default()),
        Some(Value::String(path)) => {
            let properties = raw.p.as_deref();
            let rest = properties.and_then(|properties| path.strip_prefix(properties)?.strip_prefix('.'));
            match rest {
                Some(rest) => (raw.p.clone(), rest.to_owned()),
                None => (None, path.clone()),
            }
        }
        _ => (None, name.clone()),
    };
    Field {
        below,
        target,
        form: form(entry.get(2).unwrap_or(&Value::Null), first),
        explicit_empty: entry.get(3).is_some(),
        name,
    }
}

fn form(value: &Value, first: usize) -> Form {
    let inner = |list: &Vec<Value>| Box::new(form(list.get(1).unwrap_or(&Value::Null), first));
    match value {
        Value::Number(index) => Form::Struct(first + index.as_u64().unwrap_or_default() as usize),
        Value::String(name) => match name.as_str() {
            "reference" => Form::Reference,
            "wellKnown" => Form::WellKnown,
            "secret" => Form::Secret,
            "secrets" => Form::SecretMap,
            "config" => Form::Config,
            "identities" => Form::Identities,
            _ => Form::Plain,
        },
        Value::Array(list) => match list.first().and_then(Value::as_str) {
            Some("list") => Form::List(inner(list)),
            Some("map") => Form::Map(inner(list)),
            Some("enum") => Form::Enum(
                list[1..]
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            ),
            _ => Form::Plain,
        },
        _ => Form::Plain,
    }
}

/// The structs of one kind, unpacked when one of them is first asked for.
#[derive(Debug)]
pub(super) struct Piece {
    /// The number of its first struct among those of all kinds.
    pub first: usize,
    pub length: usize,
    packed: &'static [u8],
    structs: OnceLock<Vec<Struct>>,
}

impl Piece {
    pub fn new(first: usize, length: usize, packed: &'static [u8]) -> Self {
        Self {
            first,
            length,
            packed,
            structs: OnceLock::new(),
        }
    }

    /// Structs that are not packed, the first of all.
    pub fn ready(structs: Vec<Struct>) -> Self {
        Self {
            first: 0,
            length: structs.len(),
            packed: &[],
            structs: OnceLock::from(structs),
        }
    }

    /// In bytes, packed.
    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.packed.len()
    }

    pub fn is_unpacked(&self) -> bool {
        self.structs.get().is_some()
    }

    pub fn structs(&self) -> &[Struct] {
        self.structs.get_or_init(|| {
            let raw: Vec<RawStruct> = serde_json::from_reader(DeflateDecoder::new(self.packed))
                .expect("the committed table is JSON");
            raw.into_iter().map(|raw| Struct::read(raw, self.first)).collect()
        })
    }
}
