//! Classifies errors of the API server: a retry may help, or an admission webhook is down.

use coscheduler_core::plan::ReasonCode;
use coscheduler_core::reconcile::tell::refusals::refused;

/// True if the same request may succeed a moment later: the API server could not be reached, reported a conflict (409), asked the
/// client to slow down (429), or failed (5xx). `AlreadyExists` is a 409 too, but a retry does not help.
pub fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) if status.reason == "AlreadyExists" => false,
        kube::Error::Api(status) => matches!(status.code, 409 | 429) || status.code >= 500,
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}

/// True if the API server could not call an admission webhook.
pub fn is_webhook_down(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let reason = refused("", &status.message);
    reason.code == ReasonCode::AdmissionWebhookFailed
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[track_caller]
    fn check(code: u16, reason: &str, expect: bool) {
        let error = kube::Error::Api(Box::new(Status::failure("", reason).with_code(code)));
        assert_eq!(is_transient(&error), expect, "{code} {reason}");
    }

    #[test]
    fn conflicts_throttling_and_server_failures_are_transient() {
        check(409, "Conflict", true);
        check(429, "TooManyRequests", true);
        check(500, "InternalError", true);
        check(503, "ServiceUnavailable", true);
    }

    #[test]
    fn n3_a_webhook_that_cannot_be_called_is_told_from_other_failures() {
        let failure = |message: &str| {
            let status = Status::failure(message, "InternalError").with_code(500);
            kube::Error::Api(Box::new(status))
        };
        let down = "Internal error occurred: failed calling webhook \"a.example.dev\": failed to call webhook: Post \
                    \"https://a\": EOF";
        assert!(is_webhook_down(&failure(down)));
        assert!(is_transient(&failure(down)));
        assert!(!is_webhook_down(&failure(
            "Internal error occurred: etcdserver: no leader"
        )));
    }

    #[test]
    fn refusals_are_final() {
        check(409, "AlreadyExists", false);
        check(403, "Forbidden", false);
        check(404, "NotFound", false);
        check(422, "Invalid", false);
    }
}
