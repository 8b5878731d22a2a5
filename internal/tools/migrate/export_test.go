package migrate

// ReadAnd is Read that calls done when it has read all files.
var ReadAnd = read
