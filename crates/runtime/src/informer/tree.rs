//! A JSON document that is read and not yet understood. Its text stays where it is, so that reading costs little, and
//! an object that then turns out not to be what its kind says can still be asked for its name.

use std::borrow::Cow;

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error as _, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::{BorrowedStrDeserializer, MapAccessDeserializer, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::Error;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree<'de> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(Cow<'de, str>),
    List(Vec<Tree<'de>>),
    Map(Vec<Member<'de>>),
}

impl Tree<'_> {
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Map(members) = self else { return None };
        let (_, value) = members.iter().find(|(key, _)| key == name)?;
        Some(value)
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads a Kubernetes object. `managedFields` is left out: often the larger half of an object, and of no use to a reader.
impl<'de> Deserialize<'de> for Tree<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Position::Top.deserialize(deserializer)
    }
}

/// Where in an object a value stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Top,
    Metadata,
    Inside,
}

impl<'de> DeserializeSeed<'de> for Position {
    type Value = Tree<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Position {
    type Value = Tree<'de>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Tree<'de>, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E>(self) -> Result<Tree<'de>, E> {
        Ok(Tree::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree<'de>, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree<'de>, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree<'de>, E> {
        Ok(Tree::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree<'de>, E> {
        Ok(Tree::Signed(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree<'de>, E> {
        Ok(Tree::Float(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Tree<'de>, E> {
        Ok(Tree::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree<'de>, E> {
        Ok(Tree::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree<'de>, E> {
        Ok(Tree::Text(Cow::Owned(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Self::Inside)? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree<'de>, A::Error> {
        let mut map = Vec::new();
        while let Some(Name(key)) = members.next_key()? {
            let place = match (self, key.as_ref()) {
                (Self::Top, "metadata") => Self::Metadata,
                (Self::Metadata, "managedFields") => {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
                _ => Self::Inside,
            };
            map.push((key, members.next_value_seed(place)?));
        }
        Ok(Tree::Map(map))
    }
}

/// The name of a member, where it stands.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Name<'de>;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("the name of a member")
            }

            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(value.to_owned())))
            }

            fn visit_string<E>(self, value: String) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(value)))
            }
        }

        deserializer.deserialize_str(Reader)
    }
}

impl<'tree> IntoDeserializer<'tree, Error> for &'tree Tree<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

type Member<'de> = (Cow<'de, str>, Tree<'de>);
type Open<'tree, 'de> = fn(&'tree Member<'de>) -> (Key<'tree>, &'tree Tree<'de>);
type Members<'tree, 'de> = std::iter::Map<std::slice::Iter<'tree, Member<'de>>, Open<'tree, 'de>>;

fn members<'tree, 'de>(map: &'tree [Member<'de>]) -> MapDeserializer<'tree, Members<'tree, 'de>, Error> {
    let open: Open<'tree, 'de> = |(key, value)| (Key(key), value);
    MapDeserializer::new(map.iter().map(open))
}

/// Understands a tree as a type, as `serde_json` does with its own values.
impl<'tree> Deserializer<'tree> for &'tree Tree<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'tree>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Tree::Null => visitor.visit_unit(),
            Tree::Bool(value) => visitor.visit_bool(*value),
            Tree::Unsigned(value) => visitor.visit_u64(*value),
            Tree::Signed(value) => visitor.visit_i64(*value),
            Tree::Float(value) => visitor.visit_f64(*value),
            Tree::Text(text) => visitor.visit_borrowed_str(text),
            Tree::List(list) => {
                let mut items = SeqDeserializer::<_, Error>::new(list.iter());
                let value = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(value)
            }
            Tree::Map(map) => {
                let mut members = members(map);
                let value = visitor.visit_map(&mut members)?;
                members.end()?;
                Ok(value)
            }
        }
    }

    fn deserialize_option<V: Visitor<'tree>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Tree::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'tree>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'tree>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Tree::Text(text) => visitor.visit_enum(BorrowedStrDeserializer::<Error>::new(text)),
            Tree::Map(map) if map.len() == 1 => visitor.visit_enum(MapAccessDeserializer::new(members(map))),
            _ => Err(Error::custom(
                "expected the name of a variant, or a map with one member",
            )),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'tree>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        <V: Visitor<'tree>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier
    }
}

/// A member's name, which is text even where the type it is read into is a number.
struct Key<'tree>(&'tree str);

impl<'tree> IntoDeserializer<'tree, Error> for Key<'tree> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $number:ty),*) => {
        $(fn $method<V: Visitor<'tree>>(self, visitor: V) -> Result<V::Value, Error> {
            match self.0.parse::<$number>() {
                Ok(number) => visitor.$visit(number),
                Err(_) => visitor.visit_borrowed_str(self.0),
            }
        })*
    };
}

impl<'tree> Deserializer<'tree> for Key<'tree> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'tree>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_option<V: Visitor<'tree>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'tree>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'tree>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(BorrowedStrDeserializer::<Error>::new(self.0))
    }

    numbers!(
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64
    );

    forward_to_deserialize_any! {
        <V: Visitor<'tree>>
        bool i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum Shape {
        Point,
        Circle(f64),
        Box { width: u8, height: Option<i32> },
        Polygon(Vec<(i64, i64)>),
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Wrapped(String);

    #[derive(Debug, PartialEq, Deserialize)]
    struct Everything {
        shape: Shape,
        #[serde(default)]
        wrapped: Option<Wrapped>,
        #[serde(default)]
        by_number: BTreeMap<u16, bool>,
        #[serde(default)]
        by_name: BTreeMap<String, Option<f32>>,
        #[serde(flatten)]
        rest: BTreeMap<String, Value>,
    }

    /// Read by way of a tree, and by `serde_json` alone.
    fn both(text: &str) -> (Result<Everything, String>, Result<Everything, String>) {
        let tree: Tree = serde_json::from_str(text).unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        (
            Everything::deserialize(&tree).map_err(|error| error.to_string()),
            serde_json::from_value(value).map_err(|error| error.to_string()),
        )
    }

    #[test]
    fn types_of_every_shape_are_understood_as_serde_json_does() {
        for text in [
            r#"{"shape":"point"}"#,
            r#"{"shape":{"circle":1},"wrapped":"a\nb","extra":[1,-2,3.5,null,true,"x",{"y":{}}]}"#,
            r#"{"shape":{"box":{"width":255,"height":-7}},"wrapped":null,"by_number":{"1":true,"65535":false}}"#,
            r#"{"shape":{"polygon":[[1,2],[-3,4]]},"by_name":{"a":1.5,"b":null,"c":2}}"#,
        ] {
            let (ours, theirs) = both(text);
            assert_eq!(ours.as_ref().unwrap(), theirs.as_ref().unwrap(), "{text}");
        }
        for text in [
            "7",
            "null",
            r#"{"shape":"oval"}"#,
            r#"{"shape":{"box":{"width":256}}}"#,
            r#"{"shape":{"circle":1,"point":null}}"#,
            r#"{"shape":"point","by_number":{"x":true}}"#,
            r#"{"shape":{"polygon":[[1,2,3]]}}"#,
        ] {
            let (ours, theirs) = both(text);
            assert!(ours.is_err() && theirs.is_err(), "{text}: {ours:?} {theirs:?}");
        }
    }

    #[test]
    fn only_the_metadata_s_own_managed_fields_are_left_out() {
        let text = r#"{"managedFields":1,"metadata":{"managedFields":[{"a":"}"}],"name":"x","labels":
            {"managedFields":"kept"}},"spec":{"metadata":{"managedFields":[]}}}"#;
        let tree: Tree = serde_json::from_str(text).unwrap();
        assert_eq!(
            Value::deserialize(&tree).unwrap(),
            json!({"managedFields": 1, "metadata": {"name": "x", "labels": {"managedFields": "kept"}},
                "spec": {"metadata": {"managedFields": []}}})
        );
    }

    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::btree_map("\\PC{0,4}", inner.clone(), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
                prop::collection::vec(inner, 0..4).prop_map(Value::Array),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_document_comes_out_as_it_went_in(document in documents()) {
            let text = document.to_string();
            let tree: Tree = serde_json::from_str(&text).unwrap();
            // A fraction may come back from its text a hair different, whoever reads it.
            let read: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(Value::deserialize(&tree).unwrap(), read);
        }
    }
}
