import EVM from 0xf8d6e0586b0a20c7

transaction(code: String) {
    prepare(signer: auth(BorrowValue) &Account) {
        let coa = signer.storage.borrow<auth(EVM.Deploy) &EVM.CadenceOwnedAccount>(from: /storage/evm)!
        let result = coa.deploy(code: code.decodeHex(), gasLimit: 3_000_000, value: EVM.Balance(attoflow: 0))
        assert(result.status == EVM.Status.successful, message: result.errorMessage)
    }
}
