import FungibleToken from 0xee82856bf20e2aa6
import FungibleTokenMetadataViews from 0xee82856bf20e2aa6
import MetadataViews from 0xf8d6e0586b0a20c7

/// A fungible token of the tests: its owner mints, everybody moves and burns.
access(all) contract Pebble: FungibleToken {
    access(all) event TokensMinted(amount: UFix64)
    access(all) event TokensBurned(amount: UFix64)

    access(all) var supply: UFix64

    access(all) view fun getContractViews(resourceType: Type?): [Type] {
        return [
            Type<FungibleTokenMetadataViews.FTDisplay>(),
            Type<FungibleTokenMetadataViews.FTVaultData>(),
            Type<FungibleTokenMetadataViews.TotalSupply>()
        ]
    }

    access(all) fun resolveContractView(resourceType: Type?, viewType: Type): AnyStruct? {
        if viewType == Type<FungibleTokenMetadataViews.TotalSupply>() {
            return FungibleTokenMetadataViews.TotalSupply(totalSupply: self.supply)
        }
        if viewType == Type<FungibleTokenMetadataViews.FTVaultData>() {
            return FungibleTokenMetadataViews.FTVaultData(
                storagePath: /storage/pebbles,
                receiverPath: /public/pebbles,
                metadataPath: /public/pebbles,
                receiverLinkedType: Type<&Pebble.Vault>(),
                metadataLinkedType: Type<&Pebble.Vault>(),
                createEmptyVaultFunction: (fun (): @{FungibleToken.Vault} {
                    return <- Pebble.createEmptyVault(vaultType: Type<@Pebble.Vault>())
                })
            )
        }
        if viewType == Type<FungibleTokenMetadataViews.FTDisplay>() {
            let picture = MetadataViews.Media(
                file: MetadataViews.HTTPFile(url: "https://example.org/pebble.png"),
                mediaType: "image/png"
            )
            return FungibleTokenMetadataViews.FTDisplay(
                name: "Pebbles of the tests",
                symbol: "PBL",
                description: "Worth nothing",
                externalURL: MetadataViews.ExternalURL("https://example.org/pebble"),
                logos: MetadataViews.Medias([picture]),
                socials: {}
            )
        }
        return nil
    }

    access(all) resource Vault: FungibleToken.Vault {
        access(all) var balance: UFix64

        init(balance: UFix64) {
            self.balance = balance
        }

        access(contract) fun burnCallback() {
            Pebble.supply = Pebble.supply - self.balance
            emit TokensBurned(amount: self.balance)
            self.balance = 0.0
        }

        access(all) view fun getViews(): [Type] {
            return Pebble.getContractViews(resourceType: nil)
        }

        access(all) fun resolveView(_ view: Type): AnyStruct? {
            return Pebble.resolveContractView(resourceType: nil, viewType: view)
        }

        access(all) view fun getSupportedVaultTypes(): {Type: Bool} {
            return {self.getType(): true}
        }

        access(all) view fun isSupportedVaultType(type: Type): Bool {
            return type == self.getType()
        }

        access(all) view fun isAvailableToWithdraw(amount: UFix64): Bool {
            return amount <= self.balance
        }

        access(FungibleToken.Withdraw) fun withdraw(amount: UFix64): @Pebble.Vault {
            self.balance = self.balance - amount
            return <- create Vault(balance: amount)
        }

        access(all) fun deposit(from: @{FungibleToken.Vault}) {
            let other <- from as! @Pebble.Vault
            self.balance = self.balance + other.balance
            destroy other
        }

        access(all) fun createEmptyVault(): @Pebble.Vault {
            return <- create Vault(balance: 0.0)
        }
    }

    access(all) resource Quarry {
        access(all) fun mint(amount: UFix64): @Pebble.Vault {
            Pebble.supply = Pebble.supply + amount
            emit TokensMinted(amount: amount)
            return <- create Vault(balance: amount)
        }
    }

    access(all) fun createEmptyVault(vaultType: Type): @Pebble.Vault {
        return <- create Vault(balance: 0.0)
    }

    init() {
        self.supply = 0.0
        self.account.storage.save(<- create Quarry(), to: /storage/quarry)
    }
}
