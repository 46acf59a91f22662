//! Does the page tell a person, in a real browser, what is not everywhere yet and why?

use base64::Engine;
use pointsman_api_client::Resource;
use serde_json::json;

use crate::browser::Browser;
use crate::programmer::Programmer;
use crate::site::Site;

const TAB: &str = "\u{e004}";
const SPACE: &str = " ";

/// Keeps a picture for the documentation when `POINTSMAN_SCREENSHOTS` names a directory.
async fn keep(browser: &Browser, name: &str) {
    if let Ok(directory) = std::env::var("POINTSMAN_SCREENSHOTS") {
        let picture = browser.picture().await;
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture).unwrap();
        std::fs::write(format!("{directory}/{name}.png"), bytes).unwrap();
    }
}

async fn service(site: &Site) -> u64 {
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] } });
    site.create(Resource::SERVICES, service).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_follows_live_and_names_the_node_that_is_late() {
    let (one, two) = (Programmer::start("n1").await, Programmer::start("n2").await);
    let site = Site::start(&[&one, &two], |_| {}).await;
    service(&site).await;
    let (ready, uid) = site.endpoint("a").await;
    one.commit(ready);
    two.commit(ready);

    let browser = Browser::start(1300, 1200).await;
    browser.open(&format!("http://{}/", site.address())).await;
    browser
        .until("document.getElementById('summary').dataset.level === 'ok'")
        .await;
    browser
        .until("document.getElementById('connection').textContent === 'live'")
        .await;
    browser
        .until("document.querySelector('[data-service=\"default/web\"]').innerText.includes('yes')")
        .await;
    keep(&browser, "page-calm").await;

    let version = site.terminate("a", &uid).await;
    one.commit(version);
    two.receive(version);
    browser
        .until("document.getElementById('summary').dataset.level === 'behind'")
        .await;
    browser
        .until("document.getElementById('sentence').textContent.includes('n2')")
        .await;
    let late = browser
        .value("document.getElementById('lagging').innerText")
        .await;
    let late = late.as_str().unwrap();
    assert!(
        late.contains("n2") && late.contains("default/web") && !late.contains("n1"),
        "{late}"
    );
    let row = browser
        .value("document.querySelector('#waterfall tr[data-open]').innerText")
        .await;
    assert!(row.as_str().unwrap().contains("waits for n2"), "{row}");
    keep(&browser, "page-behind").await;
    browser.prefer("dark").await;
    keep(&browser, "page-behind-dark").await;

    two.commit(version);
    browser
        .until("document.getElementById('summary').dataset.level === 'ok'")
        .await;
    browser
        .until("!document.querySelector('#waterfall tr[data-open]')")
        .await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_works_offline_by_keyboard_and_for_screen_readers() {
    let one = Programmer::start("n1").await;
    let site = Site::start(&[&one], |_| {}).await;
    service(&site).await;
    let (ready, uid) = site.endpoint("a").await;
    one.commit(ready);
    let browser = Browser::start(900, 900).await;
    browser.open(&format!("http://{}/", site.address())).await;
    browser
        .until("document.getElementById('summary').dataset.level === 'ok'")
        .await;

    let foreign = "performance.getEntriesByType('resource').filter((it) => !it.name.startsWith(location.origin)).length";
    assert_eq!(browser.value(foreign).await, 0, "nothing comes from elsewhere");
    for (what, expression) in [
        (
            "headers say what they head",
            "[...document.querySelectorAll('th')].every((it) => it.scope)",
        ),
        (
            "pictures have a text",
            "[...document.images].every((it) => it.hasAttribute('alt'))",
        ),
        (
            "sections have a name",
            "[...document.querySelectorAll('main section:not(#summary)')].every((it) => it.ariaLabel || it.hasAttribute('aria-labelledby'))",
        ),
        (
            "the summary is announced",
            "document.getElementById('summary').ariaLive === 'polite'",
        ),
        ("the language is told", "document.documentElement.lang === 'en'"),
        (
            "nothing is cut off",
            "document.documentElement.scrollWidth <= innerWidth",
        ),
    ] {
        assert_eq!(browser.value(expression).await, true, "{what}");
    }

    // The first stop leads past the heading, the next ones to what can be operated.
    browser.press(&[TAB]).await;
    browser
        .until("document.activeElement.classList.contains('skip')")
        .await;
    browser.press(&[TAB]).await;
    browser.until("document.activeElement.id === 'hold'").await;
    browser.press(&[SPACE]).await;
    browser
        .until("document.activeElement.getAttribute('aria-pressed') === 'true'")
        .await;
    let before = browser
        .value("document.querySelectorAll('#waterfall tbody tr').length")
        .await;
    let version = site.terminate("a", &uid).await;
    one.commit(version);
    site.metric_becomes(
        "pointsman_sli_watermark_lowest_resource_version{resource=\"endpointslices\"}",
        version as f64,
    )
    .await;
    let during = browser
        .value("document.querySelectorAll('#waterfall tbody tr').length")
        .await;
    assert_eq!(during, before, "what is held stays");
    browser.press(&[SPACE]).await;
    browser
        .until(&format!(
            "document.querySelectorAll('#waterfall tbody tr').length > {before}"
        ))
        .await;
    browser.close().await;
}
