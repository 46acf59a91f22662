//! Which keys sign tokens, and whose signatures are believed?
//!
//! ES256, ES384 and RS256, as kube-apiserver takes them. Keys that are made here are of P-256.

use crate::auth::keyring::{self, KeyError, Section, at, sections};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
    RsaKeyPair, UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::{Value, json};
use std::path::Path;
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo};
use x509_parser::public_key::PublicKey;

/// A signature algorithm of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Es256,
    Es384,
    Rs256,
}

impl Algorithm {
    pub const ALL: [Self; 3] = [Self::Es256, Self::Es384, Self::Rs256];

    /// The name in headers of tokens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Rs256 => "RS256",
        }
    }

    fn verification(self) -> &'static dyn VerificationAlgorithm {
        match self {
            Self::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
            Self::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
            Self::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        }
    }

    /// What stands before the key in a SubjectPublicKeyInfo: the algorithm, and of curves which.
    fn identifier(self) -> &'static [u8] {
        match self {
            Self::Es256 => {
                b"\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07"
            }
            Self::Es384 => b"\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22",
            Self::Rs256 => b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00",
        }
    }
}

/// A key whose signatures are believed.
#[derive(Clone)]
pub struct Verifier {
    pub id: String,
    pub algorithm: Algorithm,
    key: UnparsedPublicKey<Vec<u8>>,
    info: Vec<u8>,
}

impl Verifier {
    fn new(algorithm: Algorithm, key: &[u8]) -> Self {
        let mut bits = vec![0];
        bits.extend(key);
        let info = der(0x30, &[algorithm.identifier(), &der(0x03, &bits)].concat());
        Self {
            id: BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, &info)),
            algorithm,
            key: UnparsedPublicKey::new(algorithm.verification(), key.to_vec()),
            info,
        }
    }

    fn from_info(info: &[u8]) -> Option<Self> {
        let (_, info) = SubjectPublicKeyInfo::from_der(info).ok()?;
        let algorithm = match info.parsed().ok()? {
            PublicKey::RSA(_) => Algorithm::Rs256,
            PublicKey::EC(point) if point.key_size() == 256 => Algorithm::Es256,
            PublicKey::EC(point) if point.key_size() == 384 => Algorithm::Es384,
            _ => return None,
        };
        Some(Self::new(algorithm, &info.subject_public_key.data))
    }

    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        self.key.verify(message, signature).is_ok()
    }

    /// The key as a JSON Web Key.
    pub fn to_jwk(&self) -> Value {
        let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = json!({"use": "sig", "kid": self.id, "alg": self.algorithm.name()});
        let parsed = SubjectPublicKeyInfo::from_der(&self.info).ok();
        let parsed = parsed.as_ref().and_then(|(_, info)| info.parsed().ok());
        let fields = match &parsed {
            Some(PublicKey::RSA(key)) => {
                let trimmed =
                    |bytes: &[u8]| text(&bytes[bytes.iter().take_while(|byte| **byte == 0).count()..]);
                json!({"kty": "RSA", "n": trimmed(key.modulus), "e": trimmed(key.exponent)})
            }
            Some(PublicKey::EC(point)) => {
                let (x, y) = point.data()[1..].split_at(point.data().len() / 2);
                let curve = if self.algorithm == Algorithm::Es256 {
                    "P-256"
                } else {
                    "P-384"
                };
                json!({"kty": "EC", "crv": curve, "x": text(x), "y": text(y)})
            }
            _ => json!({}),
        };
        if let (Value::Object(jwk), Value::Object(fields)) = (&mut jwk, fields) {
            jwk.extend(fields);
        }
        jwk
    }
}

fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut bytes = vec![tag];
    match length {
        0..128 => bytes.push(length as u8),
        128..256 => bytes.extend([0x81, length as u8]),
        _ => bytes.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    bytes.extend(content);
    bytes
}

enum Secret {
    Curve(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

/// A key that signs.
pub struct Signer {
    pub verifier: Verifier,
    /// Its short name in the ring of keys.
    pub name: String,
    secret: Secret,
}

impl Signer {
    fn read(section: &Section) -> Option<Self> {
        let random = SystemRandom::new();
        let curve = |algorithm, kind| {
            let pair = EcdsaKeyPair::from_pkcs8(kind, &section.bytes, &random).ok()?;
            let verifier = Verifier::new(algorithm, pair.public_key().as_ref());
            Some((verifier, Secret::Curve(pair)))
        };
        let rsa = |pair: RsaKeyPair| {
            let verifier = Verifier::new(Algorithm::Rs256, pair.public_key().as_ref());
            (verifier, Secret::Rsa(pair))
        };
        let (verifier, secret) = match section.label.as_str() {
            "PRIVATE KEY" => curve(Algorithm::Es256, &ECDSA_P256_SHA256_FIXED_SIGNING)
                .or_else(|| curve(Algorithm::Es384, &ECDSA_P384_SHA384_FIXED_SIGNING))
                .or_else(|| RsaKeyPair::from_pkcs8(&section.bytes).ok().map(rsa))?,
            "RSA PRIVATE KEY" => RsaKeyPair::from_der(&section.bytes).ok().map(rsa)?,
            _ => return None,
        };
        let name = keyring::id(&section.bytes);
        Some(Self {
            verifier,
            name,
            secret,
        })
    }

    /// The signature over `message`, as tokens carry it.
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &self.secret {
            Secret::Curve(pair) => Some(pair.sign(&random, message).ok()?.as_ref().to_vec()),
            Secret::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .ok()?;
                Some(signature)
            }
        }
    }
}

/// Every key that is known.
pub struct Keys {
    pub signer: Signer,
    /// The signer's, and all that are believed besides.
    pub verifiers: Vec<Verifier>,
}

impl Keys {
    /// The first of `own` signs; all of them, and those in `others`, are believed.
    pub fn read(own: (&Path, &[Section]), others: &[&Path]) -> Result<Self, KeyError> {
        let (path, own) = own;
        let first = own.first().ok_or_else(|| unusable(path, "there is no key"))?;
        let signer = Signer::read(first).ok_or_else(|| unusable(path, NOT_A_KEY))?;
        let mut verifiers = own
            .iter()
            .map(|section| verifier(path, section))
            .collect::<Result<Vec<_>, _>>()?;
        for path in others {
            let text = std::fs::read_to_string(path).map_err(at(path))?;
            let found = sections(&text).map_err(|problem| unusable(path, problem))?;
            if found.is_empty() {
                return Err(unusable(path, "there is no key"));
            }
            for section in &found {
                verifiers.push(verifier(path, section)?);
            }
        }
        let mut known = Vec::new();
        verifiers.retain(|key| {
            !known.contains(&key.id) && {
                known.push(key.id.clone());
                true
            }
        });
        Ok(Self { signer, verifiers })
    }
}

const NOT_A_KEY: &str = "not a key of RSA (2048 bits or more), P-256 or P-384; private keys of curves have to be in PKCS #8: \
                         `openssl pkcs8 -topk8 -nocrypt`";

fn unusable(path: &Path, problem: &str) -> KeyError {
    KeyError::Unusable {
        path: path.into(),
        problem: problem.into(),
    }
}

fn verifier(path: &Path, section: &Section) -> Result<Verifier, KeyError> {
    let found = match section.label.as_str() {
        "PUBLIC KEY" => Verifier::from_info(&section.bytes),
        "RSA PUBLIC KEY" => Some(Verifier::new(Algorithm::Rs256, &section.bytes)),
        _ => Signer::read(section).map(|signer| signer.verifier),
    };
    found.ok_or_else(|| unusable(path, NOT_A_KEY))
}
