import lockkeeper from './index.js'

export const { Lockkeeper, LockkeeperError, LockkeeperTimeoutError, sessionOf, tokenOf, binary } = lockkeeper
