//! Replaces parameters in claim names (V9): `$(params.cache)` and the other ways to write such a variable.
//!
//! Tekton replaces variables in a PipelineRun's bindings with the run's own parameters. It replaces the remaining variables with
//! the parameters of each TaskRun and the defaults of its Task (v1.12.0, `ApplyParametersToWorkspaceBindings` in
//! `pkg/reconciler/{pipelinerun,taskrun}/resources/apply.go`). Tekton does not use the defaults of a Pipeline's parameters for
//! bindings. This product uses them for the variables that Tekton leaves.

use std::collections::BTreeMap;

use serde_json::Value;

/// Parameter values. The key is the text between `$(params.` and `)`: `cache`, `list[0]` or `object.key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Params(BTreeMap<String, String>);

impl Params {
    /// Reads `spec.params` of a PipelineRun, TaskRun or CustomRun: a list of objects with `name` and `value`. Malformed items are
    /// ignored, because Tekton denies them.
    pub fn read(params: &Value) -> Self {
        Self::of(params, "value")
    }

    /// Reads the defaults in `spec.params` of a Pipeline or Task: a list of objects with `name` and `default`.
    pub fn defaults(params: &Value) -> Self {
        Self::of(params, "default")
    }

    fn of(params: &Value, field: &str) -> Self {
        let mut read = Self::default();
        for param in params.as_array().into_iter().flatten() {
            if let (Some(name), Some(value)) = (param["name"].as_str(), param.get(field)) {
                read.insert(name, value);
            }
        }
        read
    }

    /// These parameters, and the defaults of all other parameters. Variables in a default are replaced.
    pub fn or(&self, defaults: &Self) -> Self {
        let mut all = defaults.clone();
        all.0.extend(self.0.clone());
        let mut all = defaults.resolved(&all);
        all.0.extend(self.0.clone());
        all
    }

    /// These parameters, with the variables in their values replaced by the parameters in `by`.
    pub(crate) fn resolved(&self, by: &Self) -> Self {
        let values = self.0.iter();
        Self(
            values
                .map(|(key, value)| (key.clone(), by.resolve(value)))
                .collect(),
        )
    }

    /// Makes the values of the parameters in `params` unknown. Each value becomes a variable that this product does not
    /// replace.
    pub(crate) fn hide(&mut self, params: &Value) {
        let params = params.as_array().into_iter().flatten();
        for name in params.filter_map(|param| param["name"].as_str()) {
            self.0.insert(name.to_owned(), format!("$(matrix.{name})"));
        }
    }

    /// Makes parameters from a map of the form that [`flattened`](Self::flattened) returns.
    pub fn from_flattened(values: BTreeMap<String, String>) -> Self {
        Self(values)
    }

    /// All values. The key is the text between `$(params.` and `)`.
    pub fn flattened(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// The number of items in the list parameter with this name. Zero if there is no such list.
    pub(crate) fn list_length(&self, name: &str) -> usize {
        let known = |index: &usize| self.0.contains_key(&format!("{name}[{index}]"));
        (0..).take_while(known).count()
    }

    fn insert(&mut self, name: &str, value: &Value) {
        let mut set = |key: String, value: &Value| {
            if let Some(text) = value.as_str() {
                self.0.entry(key).or_insert_with(|| text.to_owned());
            }
        };
        set(name.to_owned(), value);
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            set(format!("{name}[{index}]"), item);
        }
        for (key, field) in value.as_object().into_iter().flatten() {
            set(format!("{name}.{key}"), field);
        }
    }

    /// Replaces every known variable in `text` by its value. Variables inside a value are not replaced.
    pub fn resolve(&self, text: &str) -> String {
        let mut resolved = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, variable)) = rest.split_once("$(") {
            resolved.push_str(before);
            let known = variable.split_once(')');
            let known = known.and_then(|(name, after)| Some((self.value(name)?, after)));
            let (value, after) = known.unwrap_or(("$(", variable));
            resolved.push_str(value);
            rest = after;
        }
        resolved.push_str(rest);
        resolved
    }

    /// The value of a reference: `params.name`, `params["name"]` or `params['name']`, possibly followed by an index or a key.
    fn value(&self, reference: &str) -> Option<&str> {
        let rest = reference.strip_prefix("params")?;
        let quoted = |quote: char| {
            let rest = rest.strip_prefix('[')?.strip_prefix(quote)?;
            let (name, rest) = rest.split_once(quote)?;
            Some(format!("{name}{}", rest.strip_prefix(']')?))
        };
        let key = rest
            .strip_prefix('.')
            .map(str::to_owned)
            .or_else(|| quoted('"'))
            .or_else(|| quoted('\''))?;
        self.0.get(&key).map(String::as_str)
    }
}

/// True if a claim's name contains a variable.
pub fn has_variable(claim_name: &str) -> bool {
    claim_name.contains("$(")
}

/// True if a claim's name contains a parameter.
pub(crate) fn has_param(claim_name: &str) -> bool {
    claim_name.contains("$(params")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn params() -> Params {
        Params::read(&json!([
            {"name": "cache", "value": "build-cache"},
            {"name": "dotted.name", "value": "dotted"},
            {"name": "list", "value": ["zero", "one"]},
            {"name": "object", "value": {"claim": "of-object"}},
            {"name": "nested", "value": "$(params.cache)"},
            {"name": "number", "value": 7},
            {"value": "nameless"},
            "malformed",
        ]))
    }

    #[test]
    fn v9_variables_are_replaced_in_each_spelling() {
        for (text, expect) in [
            ("$(params.cache)", "build-cache"),
            ("$(params[\"cache\"])", "build-cache"),
            ("$(params['cache'])", "build-cache"),
            ("$(params.dotted.name)", "dotted"),
            ("$(params['dotted.name'])", "dotted"),
            ("$(params.list[1])", "one"),
            ("$(params['list'][0])", "zero"),
            ("$(params.object.claim)", "of-object"),
            (
                "a-$(params.cache)-$(params.list[0])-b",
                "a-build-cache-zero-b",
            ),
            ("plain", "plain"),
        ] {
            assert_eq!(params().resolve(text), expect, "{text}");
        }
    }

    #[test]
    fn v9_what_is_not_known_stays_as_it_is() {
        for text in [
            "$(params.unknown)",
            "$(params.required)",
            "$(params.number)",
            "$(params.list)",
            "$(params.list[2])",
            "$(params.list[*])",
            "$(tasks.make.results.claim)",
            "$(params.cache",
            "$(params[cache])",
            "$(",
            "$$",
        ] {
            assert_eq!(params().resolve(text), text);
        }
        assert_eq!(params().resolve("$(x$(params.cache)"), "$(xbuild-cache");
    }

    #[test]
    fn v9_a_default_counts_only_for_a_parameter_that_is_not_set() {
        let defaults = json!([
            {"name": "cache", "default": "none"},
            {"name": "object", "default": {"claim": "none", "size": "small"}},
            {"name": "unset", "default": "for-$(params.cache)"},
            {"name": "required"},
        ]);
        let all = params().or(&Params::defaults(&defaults));
        for (text, expect) in [
            ("$(params.cache)", "build-cache"),
            (
                "$(params.object.claim)-$(params.object.size)",
                "of-object-small",
            ),
            ("$(params.unset)", "for-build-cache"),
            ("$(params.required)", "$(params.required)"),
        ] {
            assert_eq!(all.resolve(text), expect, "{text}");
        }
    }

    #[test]
    fn v9_a_value_is_never_looked_into() {
        assert_eq!(params().resolve("$(params.nested)"), "$(params.cache)");
    }

    #[test]
    fn flattened_parameters_are_the_same_parameters() {
        assert_eq!(
            Params::from_flattened(params().flattened().clone()),
            params()
        );
        assert_eq!(Params::read(&json!({"not": "a list"})), Params::default());
    }

    proptest! {
        #[test]
        fn v9_text_without_a_known_variable_is_untouched(text in "[$()a-z.\\[\\]'\"]{0,20}") {
            prop_assert_eq!(Params::default().resolve(&text), text);
        }

        #[test]
        fn v9_every_occurrence_is_replaced(before in "[a-z-]{0,5}", value in "\\PC{0,8}", count in 0_usize..4) {
            let params = Params::read(&json!([{"name": "p", "value": value}]));
            let text = format!("{before}$(params.p)").repeat(count);
            prop_assert_eq!(params.resolve(&text), format!("{before}{value}").repeat(count));
        }
    }
}
