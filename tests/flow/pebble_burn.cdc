import Burner from BURNER
import FungibleToken from 0xee82856bf20e2aa6
import Pebble from PEBBLE

transaction(amount: UFix64) {
    prepare(signer: auth(BorrowValue) &Account) {
        let vault = signer.storage.borrow<auth(FungibleToken.Withdraw) &Pebble.Vault>(from: /storage/pebbles)!
        Burner.burn(<- vault.withdraw(amount: amount))
    }
}
