import FungibleToken from 0xee82856bf20e2aa6
import Pebble from PEBBLE

transaction(amount: UFix64, to: Address) {
    prepare(signer: auth(BorrowValue) &Account) {
        let quarry = signer.storage.borrow<&Pebble.Quarry>(from: /storage/quarry)!
        let receiver = getAccount(to).capabilities.borrow<&{FungibleToken.Receiver}>(/public/pebbles)!
        receiver.deposit(from: <- quarry.mint(amount: amount))
    }
}
