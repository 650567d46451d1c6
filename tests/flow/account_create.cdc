import FlowToken from 0x0ae53cb6e3f42a79
import FungibleToken from 0xee82856bf20e2aa6

/// An account with these keys, of secp256k1, and with some FLOW.
transaction(keys: [String], weights: [UFix64], amount: UFix64) {
    prepare(signer: auth(BorrowValue) &Account) {
        let account = Account(payer: signer)
        for at, key in keys {
            account.keys.add(
                publicKey: PublicKey(publicKey: key.decodeHex(), signatureAlgorithm: SignatureAlgorithm.ECDSA_secp256k1),
                hashAlgorithm: HashAlgorithm.SHA3_256,
                weight: weights[at]
            )
        }
        let vault = signer.storage.borrow<auth(FungibleToken.Withdraw) &FlowToken.Vault>(from: /storage/flowTokenVault)!
        let receiver = account.capabilities.borrow<&{FungibleToken.Receiver}>(/public/flowTokenReceiver)!
        receiver.deposit(from: <- vault.withdraw(amount: amount))
    }
}
