//! What can be set?

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use pointsman_api_client::Source;
use pointsman_http::Credentials;

/// Settings of a collector.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which API server.
    pub source: Source,
    /// Where the page, its data, metrics and the gate are served.
    pub listen: SocketAddr,
    /// Where only the gate is served, without a login: nodes ask here.
    pub gate_listen: Option<SocketAddr>,
    /// Who may see the page; needed unless `listen` is a loopback address.
    pub login_file: Option<PathBuf>,
    /// Names, besides those of the loopback, under which a page without a login is served.
    pub hosts: Vec<String>,
    /// Where cluster-days are kept; without it they end with the process.
    pub data_dir: Option<PathBuf>,
    /// Programmers that are known by name and URL.
    pub programmers: Vec<Listed>,
    /// URLs of streams that carry the lines of many programmers.
    pub relays: Vec<String>,
    /// Whether every Node is asked for its programmer.
    pub discover: bool,
    /// Port of programmers that are found through Nodes.
    pub programmer_port: u16,
    /// What is shown to programmers that ask who reads.
    pub programmer_credentials: Option<Credentials>,
    /// How often the metrics of each programmer are read.
    pub scrape_interval: Duration,
    /// The longest wait of a gate, unless asked for another.
    pub gate_bound: Duration,
    /// Where traces of changes are sent: the base URL of an OTLP receiver.
    pub otlp: Option<String>,
    /// Which share of the changes that were not slow gets a trace, from 0 to 1.
    pub trace_share: f64,
    /// The promise: 99 % of changes in at most this time; by the size of the cluster if not given.
    pub objective: Option<Duration>,
}

impl Config {
    /// The usual settings for this server.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            listen: SocketAddr::from(([127, 0, 0, 1], 10270)),
            gate_listen: None,
            login_file: None,
            hosts: Vec::new(),
            data_dir: None,
            programmers: Vec::new(),
            relays: Vec::new(),
            discover: true,
            programmer_port: 10249,
            programmer_credentials: None,
            scrape_interval: Duration::from_secs(10),
            gate_bound: pointsman_protocol::gate::DEFAULT_BOUND,
            otlp: None,
            trace_share: 0.01,
            objective: None,
        }
    }
}

/// A programmer that is known by name and URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The node's name.
    pub name: String,
    /// Base URL of its metrics listener, such as `http://10.0.0.5:10249`.
    pub url: String,
}

impl std::str::FromStr for Listed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text
            .split_once('=')
            .filter(|(name, url)| !name.is_empty() && !url.is_empty());
        let (name, url) = split.ok_or_else(|| format!("{text:?} is not NAME=URL"))?;
        pointsman_http::Target::parse(url).map_err(|error| error.to_string())?;
        Ok(Self {
            name: name.to_owned(),
            url: url.to_owned(),
        })
    }
}
