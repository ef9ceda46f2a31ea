//! Parses a Kubernetes object without `metadata.managedFields`. The API server cannot leave this field out. It is a tree, and it
//! is often larger than the rest of the object, so a parser spends much of its time on it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

/// Parses an object.
pub(super) fn parse<'de, K, D>(object: D) -> Result<K, D::Error>
where
    K: Deserialize<'de>,
    D: Deserializer<'de>,
{
    K::deserialize(At {
        level: Level::Object,
        inner: object,
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    /// The fields of the object, such as `metadata`.
    Object,
    /// The fields of `metadata`.
    Metadata,
}

/// A deserializer, visitor or seed for the fields at this level. Everything goes through to the inner one, except the left-out
/// field.
struct At<T> {
    level: Level,
    inner: T,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for At<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let level = self.level;
        self.inner.deserialize_map(At {
            level,
            inner: visitor,
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for At<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<V::Value, M::Error> {
        self.inner.visit_map(Fields {
            level: self.level,
            is_metadata: false,
            map,
        })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for At<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(At {
            level: self.level,
            inner: value,
        })
    }
}

/// The fields at this level.
struct Fields<M> {
    level: Level,
    /// True if the next value is the object's `metadata`.
    is_metadata: bool,
    map: M,
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Fields<M> {
    type Error = M::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, M::Error> {
        while let Some(name) = self.map.next_key::<String>()? {
            if self.level == Level::Metadata && name == "managedFields" {
                self.map.next_value::<IgnoredAny>()?;
                continue;
            }
            self.is_metadata = self.level == Level::Object && name == "metadata";
            return seed.deserialize(name.into_deserializer()).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, M::Error> {
        match self.is_metadata {
            true => self.map.next_value_seed(At {
                level: Level::Metadata,
                inner: seed,
            }),
            false => self.map.next_value_seed(seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tekton::PipelineRun;
    use k8s_openapi::api::core::v1::Pod;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn parsed<K: DeserializeOwned>(object: &Value) -> Result<K, String> {
        let text = object.to_string();
        let mut text = serde_json::Deserializer::from_str(&text);
        parse(&mut text).map_err(|error| error.to_string())
    }

    #[test]
    fn n8_only_the_managed_fields_are_left_out() {
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "p",
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:phase": {}}}}],
                "labels": {"managedFields": "a label", "metadata": "another"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
            },
            "spec": {"containers": [{"name": "c"}], "nodeName": "n"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let pod: Pod = parsed(&object).unwrap();
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        assert_eq!(pod, serde_json::from_value(object.clone()).unwrap());
        let run = json!({"metadata": {"managedFields": []}, "spec": {"metadata": {"managedFields": [1]}}});
        let run: PipelineRun = parsed(&run).unwrap();
        assert_eq!(run.metadata.managed_fields, None);
        assert_eq!(run.spec["metadata"]["managedFields"], json!([1]));
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for malformed in [json!([]), json!({"metadata": "text"}), json!(null)] {
            let error = parsed::<Pod>(&malformed).unwrap_err();
            assert!(error.contains("invalid type"), "{malformed}: {error}");
        }
    }
}
