transaction(key: String, weight: UFix64) {
    prepare(signer: auth(AddKey) &Account) {
        signer.keys.add(
            publicKey: PublicKey(publicKey: key.decodeHex(), signatureAlgorithm: SignatureAlgorithm.ECDSA_secp256k1),
            hashAlgorithm: HashAlgorithm.SHA2_256,
            weight: weight
        )
    }
}
