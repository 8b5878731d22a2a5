// Its presence lets a function of this package have no body.
