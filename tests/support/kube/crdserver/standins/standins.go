// Package standins is in the place of controller-runtime, of which the file of JobSet's webhook names these types, and
// of JobSet's controllers, of which build.py cuts out the functions that it calls. Nothing here is called by a check.
package standins

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

type Client interface {
	Get(ctx context.Context, key types.NamespacedName, into any, options ...any) error
}

type Manager interface{ GetClient() Client }

type Warnings []string

type Defaulter[T any] interface {
	Default(ctx context.Context, told T) error
}

type Validator[T any] interface {
	ValidateCreate(ctx context.Context, told T) (Warnings, error)
	ValidateUpdate(ctx context.Context, old, told T) (Warnings, error)
	ValidateDelete(ctx context.Context, old T) (Warnings, error)
}

type Builder[T any] struct{}

func NewWebhookManagedBy[T any](Manager, T) Builder[T]     { return Builder[T]{} }
func (b Builder[T]) WithDefaulter(Defaulter[T]) Builder[T] { return b }
func (b Builder[T]) WithValidator(Validator[T]) Builder[T] { return b }
func (b Builder[T]) Complete() error                       { return nil }
