import FungibleToken from 0xee82856bf20e2aa6
import Pebble from PEBBLE

transaction {
    prepare(signer: auth(SaveValue, IssueStorageCapabilityController, PublishCapability) &Account) {
        signer.storage.save(<- Pebble.createEmptyVault(vaultType: Type<@Pebble.Vault>()), to: /storage/pebbles)
        let vault = signer.capabilities.storage.issue<&Pebble.Vault>(/storage/pebbles)
        signer.capabilities.publish(vault, at: /public/pebbles)
    }
}
