//! Takes the status out of an object without making anything of the rest, which is often much larger and of no interest
//! to who compares a status.

use serde::{
    Serialize, Serializer,
    ser::{Impossible, SerializeMap, SerializeStruct},
};
use serde_json::{Error, Value, value};

/// The object's `status` as JSON; null if it has none.
pub(super) fn status_of(object: &impl Serialize) -> Result<Value, Error> {
    object.serialize(OnlyStatus)
}

struct OnlyStatus;

/// The members of the object, of which one counts.
struct Members {
    status: Value,
    at_status: bool,
}

impl Members {
    fn none() -> Self {
        Self {
            status: Value::Null,
            at_status: false,
        }
    }
}

impl SerializeStruct for Members {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        if name == "status" {
            self.status = value::to_value(value)?;
        }
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        Ok(self.status)
    }
}

/// What serde makes of a struct with flattened members, and of a map.
impl SerializeMap for Members {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.at_status = value::to_value(key)? == "status";
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        if self.at_status {
            self.status = value::to_value(value)?;
        }
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        Ok(self.status)
    }
}

/// What is no object has no status.
macro_rules! without_status {
    ($($method:ident($($argument:ty),*);)*) => {
        $(fn $method(self, $(_: $argument),*) -> Result<Value, Error> {
            Ok(Value::Null)
        })*
    };
}

impl Serializer for OnlyStatus {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Impossible<Value, Error>;
    type SerializeTuple = Impossible<Value, Error>;
    type SerializeTupleStruct = Impossible<Value, Error>;
    type SerializeTupleVariant = Impossible<Value, Error>;
    type SerializeMap = Members;
    type SerializeStruct = Members;
    type SerializeStructVariant = Impossible<Value, Error>;

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Members, Error> {
        Ok(Members::none())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Members, Error> {
        Ok(Members::none())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    without_status! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_f32(f32);
        serialize_f64(f64);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Error> {
        Err(no_object())
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        Err(no_object())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Error> {
        Err(no_object())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        Err(no_object())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        Err(no_object())
    }
}

fn no_object() -> Error {
    serde::ser::Error::custom("a Kubernetes object is a map of its fields")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use serde_json::json;

    use super::*;

    #[derive(Serialize)]
    struct Flattened {
        spec: u8,
        #[serde(flatten)]
        rest: BTreeMap<String, Value>,
    }

    #[test]
    fn the_status_is_what_the_whole_object_says_it_is() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}))
        .unwrap();
        let whole = serde_json::to_value(&pod).unwrap();
        assert_eq!(status_of(&pod).unwrap(), whole["status"]);
        assert_eq!(status_of(&pod).unwrap()["phase"], "Running");
        assert_eq!(status_of(&whole).unwrap(), whole["status"]);
        let rest = BTreeMap::from([("status".to_owned(), json!({"x": 1}))]);
        assert_eq!(status_of(&Flattened { spec: 1, rest }).unwrap(), json!({"x": 1}));
    }

    #[test]
    fn what_has_no_status_has_none() {
        assert_eq!(status_of(&ConfigMap::default()).unwrap(), Value::Null);
        assert_eq!(status_of(&Pod::default()).unwrap(), Value::Null);
        assert_eq!(status_of(&7).unwrap(), Value::Null);
        status_of(&[1, 2]).unwrap_err();
    }
}
