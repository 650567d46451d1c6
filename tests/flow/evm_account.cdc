import EVM from 0xf8d6e0586b0a20c7

/// Nonce, balance in attoflow, and code of an EVM account.
access(all) fun main(address: String): [AnyStruct] {
    let account = EVM.addressFromString(address)
    return [account.nonce(), account.balance().attoflow, String.encodeHex(account.code())]
}
