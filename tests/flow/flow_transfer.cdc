import FlowToken from 0x0ae53cb6e3f42a79
import FungibleToken from 0xee82856bf20e2aa6

/// To each of them the same.
transaction(amount: UFix64, to: [Address]) {
    prepare(signer: auth(BorrowValue) &Account) {
        let vault = signer.storage.borrow<auth(FungibleToken.Withdraw) &FlowToken.Vault>(from: /storage/flowTokenVault)!
        for address in to {
            let receiver = getAccount(address).capabilities.borrow<&{FungibleToken.Receiver}>(/public/flowTokenReceiver)!
            receiver.deposit(from: <- vault.withdraw(amount: amount))
        }
    }
}
