//! Conversions between `google.protobuf.Struct` and JSON. Parts of Kubernetes objects are Structs on the wire, never bytes, so
//! that people can read and write them with grpcurl.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value as ProtoValue};
use serde_json::{Map, Number, Value};

/// 2^53. A double can represent every integer up to this magnitude.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The greatest depth of nested objects and lists on the wire. Decoders refuse more than 100 nested messages, and each level of
/// JSON needs up to three nested messages.
pub const DEEPEST: usize = 28;

/// The JSON path of a part of `value` that is nested deeper than [`DEEPEST`]. `None` if there is no such part.
pub fn too_deep(value: &Value) -> Option<String> {
    fn beyond(value: &Value, levels_left: usize) -> Option<String> {
        let Some(left) = levels_left.checked_sub(1) else {
            return Some(String::new());
        };
        match value {
            Value::Object(fields) => fields
                .iter()
                .find_map(|(key, value)| Some(format!(".{key}{}", beyond(value, left)?))),
            Value::Array(values) => values
                .iter()
                .enumerate()
                .find_map(|(index, value)| Some(format!("[{index}]{}", beyond(value, left)?))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }
    beyond(value, DEEPEST).map(|path| path.trim_start_matches('.').to_owned())
}

/// A Struct as a JSON object. Whole numbers up to 2^53 become integers, as Kubernetes expects. NaN and infinity, which JSON
/// does not have, become null.
pub fn from_struct(fields: Struct) -> Map<String, Value> {
    fields
        .fields
        .into_iter()
        .map(|(key, value)| (key, from_value(value)))
        .collect()
}

/// A JSON object as a Struct. Integers beyond 2^53 lose precision, because a Struct's numbers are doubles.
pub fn to_struct(object: &Map<String, Value>) -> Struct {
    Struct {
        fields: object
            .iter()
            .map(|(key, value)| (key.clone(), to_value(value)))
            .collect(),
    }
}

/// A JSON value as a Struct. The Struct is empty if the value is not an object.
pub fn object_to_struct(value: &Value) -> Struct {
    value.as_object().map(to_struct).unwrap_or_default()
}

fn from_value(value: ProtoValue) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => Value::Bool(flag),
        Some(Kind::StringValue(text)) => Value::String(text),
        Some(Kind::NumberValue(number)) => from_number(number),
        Some(Kind::StructValue(fields)) => Value::Object(from_struct(fields)),
        Some(Kind::ListValue(list)) => {
            Value::Array(list.values.into_iter().map(from_value).collect())
        }
    }
}

fn from_number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() <= EXACT {
        Value::from(number as i64)
    } else {
        Number::from_f64(number).map_or(Value::Null, Value::Number)
    }
}

fn to_value(value: &Value) -> ProtoValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(flag) => Kind::BoolValue(*flag),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::Array(values) => Kind::ListValue(ListValue {
            values: values.iter().map(to_value).collect(),
        }),
        Value::Object(object) => Kind::StructValue(to_struct(object)),
    };
    ProtoValue { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kubernetes_object_survives_the_round_trip() {
        let object = json!({
            "metadata": {"generation": 3, "labels": {"a": "b"}, "finalizers": []},
            "spec": {"fsGroup": 65532, "ratio": 0.5, "on": true, "off": null, "list": [1, "x", {"y": -2}]},
        });
        assert_eq!(
            Value::Object(from_struct(object_to_struct(&object))),
            object
        );
    }

    fn nested(levels: usize) -> Value {
        (1..levels).fold(json!({}), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn a_value_that_is_not_too_deep_survives_the_wire() {
        use prost::Message as _;
        let deepest = nested(DEEPEST);
        assert_eq!(too_deep(&deepest), None);
        let request = crate::planner::AdmitPipelineRunRequest {
            old_pipeline_run: Some(object_to_struct(&deepest)),
            ..Default::default()
        };
        let decoded =
            crate::planner::AdmitPipelineRunRequest::decode(request.encode_to_vec().as_slice());
        assert_eq!(decoded.unwrap(), request);
        let path = too_deep(&json!({"spec": [nested(DEEPEST)]})).unwrap();
        assert!(path.starts_with("spec[0].a.a"), "{path}");
    }

    #[test]
    fn numbers_that_json_does_not_have_become_null() {
        assert_eq!(from_number(f64::NAN), Value::Null);
        assert_eq!(from_number(1e300), json!(1e300));
    }
}
