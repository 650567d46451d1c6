import FungibleToken from 0xee82856bf20e2aa6
import Pebble from PEBBLE

/// Through one vault in the hand, split on the way.
transaction(amount: UFix64, to: Address, also: Address) {
    prepare(signer: auth(BorrowValue) &Account) {
        let vault = signer.storage.borrow<auth(FungibleToken.Withdraw) &Pebble.Vault>(from: /storage/pebbles)!
        let hand <- vault.withdraw(amount: amount)
        let part <- hand.withdraw(amount: amount / 4.0)
        getAccount(to).capabilities.borrow<&{FungibleToken.Receiver}>(/public/pebbles)!.deposit(from: <- hand)
        getAccount(also).capabilities.borrow<&{FungibleToken.Receiver}>(/public/pebbles)!.deposit(from: <- part)
    }
}
