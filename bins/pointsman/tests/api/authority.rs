//! Can the certificate authority be replaced while clients of the old one and of the new one work?

use kube::config::Kubeconfig;
use pointsman_harness::wire::Http;
use pointsman_harness::{Server, eventually, program};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn kubeconfig(server: &Server) -> Option<Kubeconfig> {
    Kubeconfig::read_from(server.kubeconfig()).ok()
}

fn certificate(config: &Kubeconfig) -> String {
    let user = config.auth_infos[0].auth_info.as_ref().unwrap();
    user.client_certificate_data.clone().unwrap()
}

fn authorities(config: &Kubeconfig) -> String {
    let cluster = config.clusters[0].cluster.as_ref().unwrap();
    cluster.certificate_authority_data.clone().unwrap()
}

/// Whether a new connection with this kubeconfig gets an answer.
async fn works(config: &Kubeconfig) -> bool {
    let http = Http::try_new(config.clone()).await.unwrap();
    http.try_get(MAPS).await.is_ok_and(|answer| answer.code == 200)
}

/// Runs `pointsman ca` and returns what it prints.
fn ca(server: &Server, arguments: &[&str]) -> Result<String, String> {
    let output = std::process::Command::new(program())
        .arg("ca")
        .args(arguments)
        .arg("--data-dir")
        .arg(server.kubeconfig().parent().unwrap())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_is_replaced_in_steps_and_only_the_last_one_ends_the_old_certificates() {
    let mut server = Server::start_to_be_restarted(&[]).await;
    let before = kubeconfig(&server).unwrap();
    assert!(
        ca(&server, &["rotate", "drop"])
            .unwrap_err()
            .contains("the next step is `trust`")
    );

    let said = ca(&server, &["rotate", "trust"]).unwrap();
    assert!(
        said.contains("restart every role") && said.contains("pointsman ca rotate issue"),
        "{said}"
    );
    let both = eventually("kubeconfigs trust both authorities", async || {
        kubeconfig(&server).filter(|config| authorities(config) != authorities(&before))
    })
    .await;
    assert_eq!(
        certificate(&both),
        certificate(&before),
        "the old one still issues"
    );
    assert!(works(&before).await && works(&both).await);
    server.kill().await;
    server.launch().await;
    assert!(works(&before).await && works(&both).await);

    ca(&server, &["rotate", "issue"]).unwrap();
    let new = eventually("kubeconfigs have certificates of the new authority", async || {
        kubeconfig(&server).filter(|config| certificate(config) != certificate(&before))
    })
    .await;
    eventually(
        "the server shows a certificate of the new authority",
        async || (!works(&before).await).then_some(()),
    )
    .await;
    assert!(works(&both).await, "an old certificate");
    assert!(works(&new).await, "a new certificate");
    server.kill().await;
    server.launch().await;
    assert!(works(&both).await && works(&new).await);

    let open = Http::try_new(both.clone()).await.unwrap();
    assert_eq!(open.get(MAPS).await.code, 200);
    ca(&server, &["rotate", "drop"]).unwrap();
    eventually("old certificates are refused", async || {
        (!works(&both).await).then_some(())
    })
    .await;
    eventually("and so are connections that were made with them", async || {
        open.try_get(MAPS).await.is_err().then_some(())
    })
    .await;
    let last = kubeconfig(&server).unwrap();
    assert!(works(&last).await);
    assert_eq!(certificate(&last), certificate(&new));
    server.restart().await;
    assert!(works(&last).await && !works(&both).await);
    assert!(ca(&server, &["status"]).unwrap().contains("issues certificates"));
}
