use super::*;
use http::{Request, Response};
use kube::client::Body;
use tower_test::mock;

/// What the scripted API server answers, one after the other.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Conflict,
    AlreadyExists,
    TooManyRequests,
    Failure,
    Forbidden,
    Success,
}

impl Answer {
    fn into_response(self) -> Response<Body> {
        let (code, reason) = match self {
            Self::Conflict => (409, "Conflict"),
            Self::AlreadyExists => (409, "AlreadyExists"),
            Self::TooManyRequests => (429, "TooManyRequests"),
            Self::Failure => (500, "InternalError"),
            Self::Forbidden => (403, "Forbidden"),
            Self::Success => (201, ""),
        };
        let body = if code == 201 {
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}})
        } else {
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": reason, "reason": reason, "code": code})
        };
        let body = Body::from(serde_json::to_vec(&body).unwrap());
        Response::builder().status(code).body(body).unwrap()
    }
}

/// Creates a StatefulSet at an API server that answers as scripted, and says how often it was asked.
async fn create(script: &[Answer]) -> (Result<Option<StatefulSet>, Error>, usize) {
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let objects = Objects::new(Client::new(service, "ci"));
    let script = script.to_vec();
    let server = tokio::spawn(async move {
        let mut asked = 0;
        while let Some((request, respond)) = server.next_request().await {
            assert_eq!(request.method(), "POST");
            let answer = script[asked.min(script.len() - 1)];
            asked += 1;
            respond.send_response(answer.into_response());
        }
        asked
    });
    let outcome = objects.create("ci", &StatefulSet::default()).await;
    drop(objects);
    (outcome, server.await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_take_a_write_is_asked_again_until_it_can() {
    use Answer::{Conflict, Failure, Success, TooManyRequests};
    let (outcome, asked) = create(&[Conflict, TooManyRequests, Failure, Success]).await;
    assert!(outcome.unwrap().is_some());
    assert_eq!(asked, 4);
}

#[tokio::test(start_paused = true)]
async fn asking_again_is_bounded_and_the_caller_may_try_later() {
    let (outcome, asked) = create(&[Answer::Failure]).await;
    assert!(outcome.unwrap_err().is_transient());
    assert_eq!(asked, 6);
}

#[tokio::test(start_paused = true)]
async fn what_exists_is_no_error_and_what_is_forbidden_is_final() {
    let (outcome, asked) = create(&[Answer::AlreadyExists]).await;
    assert!(outcome.unwrap().is_none());
    assert_eq!(asked, 1);
    let (outcome, asked) = create(&[Answer::Forbidden]).await;
    assert!(!outcome.unwrap_err().is_transient());
    assert_eq!(asked, 1);
}

/// The pods of namespace `ci`, of an API server that serves them page by page.
async fn live_pods(pages: Vec<serde_json::Value>) -> (Arc<Vec<PodUse>>, Vec<String>) {
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let objects = Objects::new(Client::new(service, "ci"));
    let server = tokio::spawn(async move {
        let mut pages = pages.into_iter();
        let mut asked = Vec::new();
        while let Some((request, respond)) = server.next_request().await {
            assert_eq!(request.method(), "GET");
            asked.push(request.uri().to_string());
            let page = serde_json::to_vec(&pages.next().unwrap()).unwrap();
            respond.send_response(Response::new(Body::from(page)));
        }
        asked
    });
    let used = objects.live_pods("ci").await.unwrap();
    drop(objects);
    (used, server.await.unwrap())
}

#[tokio::test]
async fn the_pods_that_have_not_ended_are_read_page_by_page() {
    let pod = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"containers": [], "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": format!("of-{name}")}}]}})
    };
    let (used, asked) = live_pods(vec![
        json!({"metadata": {"continue": "page-2"}, "items": [pod("a"), pod("b")]}),
        json!({"metadata": {"continue": ""}, "items": [pod("c")]}),
    ])
    .await;
    let claims: Vec<_> = used.iter().flat_map(|pod| &pod.claims).collect();
    assert_eq!(claims, ["of-a", "of-b", "of-c"]);
    let not_ended = "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";
    let [first, second] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    for asked in [first, second] {
        assert!(asked.starts_with("/api/v1/namespaces/ci/pods?"), "{asked}");
        assert!(
            asked.contains(not_ended) && asked.contains("limit=100"),
            "{asked}"
        );
    }
    assert!(
        !first.contains("continue=") && second.contains("continue=page-2"),
        "{asked:?}"
    );
}
